"""The pages for those who come from other libraries: their files and their Python, page by page, in an empty folder."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shuhari
from shuhari.data import EMPTY

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"^`(?P<name>[\w.]+)`\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # what is another library's is `py`

Follow = Callable[..., dict[str, Any]]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """The names that the blocks of a page leave behind, run as one script beside the files that it shows. `smaller`:
    what of the page's Python is replaced, each of which has to be there, so that it takes seconds."""

    def read(name: str, smaller: Mapping[str, str] = EMPTY) -> dict[str, Any]:
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        for found in FILE.finditer(page):
            (tmp_path / found["name"]).write_text(found["text"], encoding="utf-8")
        blocks = BLOCK.findall(FILE.sub("", page))
        assert blocks
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)  # as the folder of a script is
        code = "\n".join(blocks)
        for old, new in smaller.items():
            assert old in code, old
            code = code.replace(old, new)
        (tmp_path / "page.py").write_text(code, encoding="utf-8")
        return runpy.run_path("page.py", run_name="__main__")

    return read


def test_from_trl(follow: Follow) -> None:
    made = follow("from-trl")
    first, *_, last = made["run"].metrics["reward/mean"]
    assert last > first and len(made["dapo"].metrics["step"]) == 2
    assert (Path("my-model") / "config.json").is_file()


SB3 = {"progress=True": "progress=False", "env_steps=25_000": "env_steps=128", "env_steps=20_000": "env_steps=128",
       "env_steps=8_192": "env_steps=4_096",
       "steps=1, **ppo)": 'steps=1, **{**ppo, "buffer.size": 128, "evaluate.n": 1})',
       "range(1000)": "range(20)", "greedy >= -200": "greedy >= -2000", '"evaluate.every": 10, "evaluate.n": 5, ':
       '"evaluate.every": 2, "evaluate.n": 1, ', '"rollout.workers": 4': '"rollout.workers": 2',
       "**four)": '**four, **{"evaluate.n": 2, "buffer.size": 128})',
       "**nets)": '**nets, **{"evaluate.n": 2, "buffer.size": 128})',
       "**extractor)": '**extractor, **{"evaluate.n": 2, "buffer.size": 128})'}  # fmt: skip


@pytest.mark.timeout(300)  # workers are processes, which take seconds to start on a busy machine
def test_from_stable_baselines3(follow: Follow) -> None:
    made = follow("from-sb3", SB3)
    assert made["run"].summary["after"]["greedy"] > made["run"].summary["before"]["greedy"]
    assert made["env"].action_space.contains(made["action"][0])
    assert Path("cartpole.gif").stat().st_size > 1000
    widths = [layer.out_features for layer in made["small"].model.module.body.layers]
    assert widths == [32, 32, 2]
    assert shuhari.load("runs/seen").model.module[0].linear[0].out_features == 128
    assert made["watched"].summary["stopped"].startswith("evaluate/greedy is")
    assert made["watched"].metrics["step"][-1] == 2, "the first evaluation after the start"


CLEANRL = {"env_steps=500_000, **ppo)": 'env_steps=512, **{**ppo, "evaluate.n": 1})',
           "env_steps=500_000, **spo)": 'env_steps=512, **{**spo, "buffer.size": 256, "evaluate.n": 1})'}  # fmt: skip


def test_from_cleanrl(follow: Follow) -> None:
    made = follow("from-cleanrl", CLEANRL)
    assert abs(made["run"].metrics["policy/ratio"][0] - 1) < 0.1 and made["run"].metrics["step"][-1] == 2


D3RLPY = {"steps=100,": "steps=2,", '"draws": 1000': '"draws": 50', "env_steps=100_000": "env_steps=1_200",
          '"episodes": 500': '"episodes": 50', "steps=1000)": 'steps=1, **{"buffer.draws": 5, "evaluate.n": 2})',
          "**warm)": '**warm, **{"evaluate.n": 2})', "**explorer)": '**explorer, **{"evaluate.n": 20})'}  # fmt: skip


def test_from_d3rlpy(follow: Follow) -> None:
    """What goes on in the environment begins at what was learnt from the data: the same policy, so the same return on
    the same held-out episodes."""
    made = follow("from-d3rlpy", D3RLPY)
    scores = [[made[name].summary[when]["greedy"] for name, when in ((first, "after"), (second, "before"))]
              for first, second in (("dqn", "online"), ("cql", "sac"))]  # fmt: skip
    assert all(before == after for before, after in scores)
    assert made["online"].metrics["spent/env_steps"][-1] >= 1_200


def test_from_verl(follow: Follow) -> None:
    from shuhari.desk.cli import app

    made = follow("from-verl")
    assert made["run"].metrics["reward/right"][-1] is not None
    Path("sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n', encoding="utf-8")
    told = CliRunner().invoke(app, ["train", "sums.toml", "--dry-run"])
    assert told.exit_code == 0 and "rewards.py:right" in told.output


def test_several_roles(follow: Follow) -> None:
    """The point where each role answers the other softly, by iteration; one part with both roles has the same bits."""
    made = follow("several-roles")
    p = q = 0.5
    for _ in range(1000):
        p += 0.05 * (1 / (1 + math.exp(4 * q - 1)) - p)
        q += 0.05 * (1 / (1 + math.exp(1 - 4 * p)) - q)
    assert made["rights"](made["apart"]) == pytest.approx((p, q), abs=0.05)
    assert made["rights"](made["apart"]) == made["rights"](made["together"])


def test_judges(follow: Follow) -> None:
    """What is watched is reported and not trained on; both answers of an episode are decisions, and what credits turns
    or tokens by settings alone gives other updates than what credits the whole."""
    made = follow("judges")
    graded, run = made["graded"].metrics, made["run"]
    assert set(graded["reward/duel"]) == {0.5}, "of a group, whose wins are its losses"
    assert all(0 < x < 1 for x in graded["reward/model"]) and graded["spent/judge_asked"][-1] > 0
    assert "spent/failed_graders" not in graded
    verdicts, surprises, briefs = (run.metrics[f"reward/{name}"][-2:] for name in ("verdict", "surprise", "brief"))
    assert all(0 < x < 1 for x in verdicts) and all(x > 0 for x in surprises)
    means, scores = run.metrics["reward/mean"][-2:], run.metrics["reward/score"][-2:]
    sums = [s + 0.5 * v + 0.5 * b for s, v, b in zip(scores, verdicts, briefs, strict=True)]
    assert means == pytest.approx(sums, abs=0.05), "but for samples that answer nothing, which have no verdict"
    assert all(0 < b < 1 for b in briefs)
    assert run.metrics["rollout/turns"][-1] == 2
    first = [made[name].metrics["policy/grad_norm"][-2] for name in ("run", "turns", "tokens")]
    assert len(set(first)) == 3 and all(x > 0 for x in first)


def test_from_verifiers(follow: Follow) -> None:
    made = follow("from-verifiers")
    assert {"before", "after"} <= made["run"].summary.keys()
    assert 1 <= made["played"].metrics["rollout/turns"][-1] <= 2


def test_an_environment_of_yours(follow: Follow) -> None:
    made = follow("tutorial-environment")
    assert made["total"] > 60 and made["run"].summary["after"]["greedy"] > made["run"].summary["before"]["greedy"]


def test_a_comparison_for_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the page, with two seeds and a small budget."""
    from shuhari.desk.cli import app

    page = (DOCS / "tutorial-comparison.md").read_text(encoding="utf-8")
    tank = FILE.search((DOCS / "tutorial-environment.md").read_text(encoding="utf-8"))
    assert tank is not None and tank["name"] == "tank.py"
    (tmp_path / "tank.py").write_text(tank["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    trained = re.findall(r"^  shuhari (train .*)$", page, re.MULTILINE)
    (compared,) = re.findall(r"^shuhari (compare PPO.*?)\n```", page, re.MULTILINE | re.DOTALL)
    for seed in "01":
        for command in trained:
            words = command.replace("$seed", seed).replace("env_steps=20000", "env_steps=2000").split()
            assert CliRunner().invoke(app, words).exit_code == 0
    words = [re.sub(r",runs/\w+-[234]", "", word) for word in compared.replace("\\\n", " ").split()]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0 and "A2C" in told.output
    assert "booktabs" in Path("tank.tex").read_text(encoding="utf-8") and Path("tank.pdf").stat().st_size > 1000
