"""Faults that the field has met, one by one: what docs/conformance says that this library does not do.

Those whose tests stand beside the code that they are about (resuming, micro-batches) are named on their pages.
"""

from __future__ import annotations

import asyncio
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shuhari
from shuhari import Sampling, testing
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.models.text.made_tokenizers import bpe_tokenizer
from shuhari.needs import Need, Trace, evaluate
from shuhari.rewards.maths import Maths
from shuhari.rollouts.episode import Episode
from shuhari.store import Run
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.tasks.countdown import Countdown
from shuhari.transforms.advantage import Advantage

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "conformance").glob("*.md"))
SMALL = {"use": "causal", "architecture": "gpt2", "hidden": 16, "layers": 1, "heads": 2, "context": 32}


def test_under_top_p_the_ratio_begins_at_one_and_not_at_the_mass_that_was_kept() -> None:
    with shuhari.session(SMALL, task="arithmetic", sampling=Sampling(top_p=0.6, max_new=4), seed=0, threads=1) as s:
        batch = s.sample(8, n=4)
        model = s.models["policy"]
        lm = model.module.lm.eval()  # without dropout, as ours scores
        mask = batch["mask"]
        ours = evaluate(batch, [Need(("policy",), "log_prob")], {"policy": model})["policy/log_prob"]
        torch.testing.assert_close(ours[mask], batch["logp"][mask], atol=1e-4, rtol=0)
        ratios = []  # of all the vocabulary to what was sampled, token by token
        for step in batch.steps:
            with torch.no_grad():
                row = torch.tensor(np.concatenate([step.context, step.action]), dtype=torch.long)[None]
                logits = lm(row).logits[0, len(step.context) - 1 : -1]
            logits[:, model.text.pad] = -torch.inf  # padding is never said
            whole = logits.log_softmax(-1)
            taken = whole.gather(-1, torch.tensor(step.action, dtype=torch.long)[:, None])[:, 0]
            ratios.append((taken - torch.as_tensor(step.logp)).exp())
        kept = torch.cat(ratios)
        assert kept.min() >= 0.6 - 1e-4 and kept.max() <= 1 + 1e-4 and kept.mean() < 0.9


def test_rloo_is_the_distance_to_the_mean_of_the_others_and_one_alone_teaches_nothing() -> None:
    batch = testing.groups([[1.0, 0.0, 0.0, 0.5], [0.7, None, None, None]])
    out = Advantage(centre="leave-one-out", scale="none")(batch, testing.context())
    others = [1 - 0.5 / 3, 0 - 1.5 / 3, 0 - 1.5 / 3, 0.5 - 1 / 3]
    assert out["advantage"][:, 0].tolist() == pytest.approx([*others, 0, 0, 0, 0])


def test_a_sample_that_one_reward_does_not_judge_is_no_part_of_its_group() -> None:
    def right(completions: list[str], **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    def tidy(completions: list[str], **columns: Any) -> list[float | None]:
        return [1.0, 0.0, 1.0, None]

    rewards = {"right": right, "tidy": tidy}
    with shuhari.session(SMALL, task="arithmetic", rewards=rewards, sampling=Sampling(max_new=2), seed=0) as s:
        batch = s.transform(s.sample(1, n=4), Advantage(scale="none"))
    assert batch["advantage"][:, 0].tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0])  # means over the three judged
    assert batch["weight/rl"].reshape(4, -1)[:, 0].tolist() == [1, 1, 1, 0]


def test_beside_what_is_trained_stands_the_score_which_may_lead_and_is_watched(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}=", "answer": "7"} for i in range(40)]

    def proxy(completions: list[str], **columns: Any) -> list[float]:
        return [100.0] * len(completions)

    small = {"models.policy": {"hidden": 16, "layers": 1, "heads": 2}, "rollout.n": 2, "buffer.size": 2}
    short = {"remove": ["stage.warm-up"], "stage.rl.steps": 1, "evaluate.n": 3, "evaluate.samples": 1}
    run = shuhari.train("baselines/grpo", tmp_path / "run", dataset=rows, reward=proxy, **small, **short)
    assert run.metrics["reward/mean"] == [100.0]
    after = run.summary["after"]
    assert run.summary["measure"] == "proxy" and after["greedy"] == after["greedy.proxy"] == 100.0
    assert 0 <= after["greedy.score"] <= 1
    began = Run(run.path).get("began")["rl"]
    assert began["problems"] == {"greedy.score": 3}, "a fall of it is told (own-score-falls)"
    led = shuhari.train("baselines/grpo", tmp_path / "led", dataset=rows, reward=proxy, **small, **short,
                        **{"evaluate.measure": "score"})  # fmt: skip
    assert led.summary["measure"] == "score" and led.summary["after"]["greedy"] == after["greedy.score"]


PAYLOADS = (
    "__import__('pathlib').Path('canary').touch()",
    "[__import__('pathlib').Path('canary').touch()]",
    r"\pi if __import__('pathlib').Path('canary').touch() else \pi",
    r"\boxed{[__import__('pathlib').Path('canary').touch()]}",
    r"\begin{pmatrix}__import__('pathlib').Path('canary').touch()\end{pmatrix}",
)


def test_no_grader_runs_what_a_model_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = [Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text}) for text in PAYLOADS]
    for task in (Arithmetic(), Countdown()):
        problem = task.problems("train")[0]
        assert [task.grade(problem, (step,))["score"] for step in said] == [0.0] * len(said)
    if find_spec("math_verify"):
        matrix = Request(Problem("t", "0", "p", r"\begin{pmatrix}1 & 2\end{pmatrix}"))
        judge = Maths()
        try:
            told = asyncio.run(judge.grade([Trajectory(matrix, (step,)) for step in said], testing.context()))
        finally:
            judge.close()
        assert all(one is None or one["maths"] == 0.0 for one in told) and any(told)
    assert not list(tmp_path.iterdir())


def test_turns_are_trained_as_the_tokens_that_were_sampled() -> None:
    pieces = bpe_tokenizer(["the cat sat on the mat"] * 20, 270)
    said = np.concatenate([pieces.encode(c) for c in "the cat"]).astype(np.int32)  # letters, where encoding joins them
    again = pieces.encode(pieces.decode(said))
    assert len(again) < len(said)

    class Engine:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def sample(self, role: str, context: Any, sampling: Any, n: int = 1, *, key: Any) -> list[Trace]:
            self.asked.append(context)
            return [Trace(said, np.full(len(said), -1.0, np.float32), 0, {"text": pieces.decode(said)})]

    class World:
        def __init__(self) -> None:
            self.turns = 0

        def reset(self, problem: Problem) -> str:
            return "the mat"

        def step(self, action: str) -> tuple[str, dict[str, float], Status | None]:
            assert action == "the cat"
            self.turns += 1
            return " sat ", {}, Status.FINISHED if self.turns == 2 else None

    model = SimpleNamespace(encode=pieces.encode, decode=pieces.decode)
    engine, task = Engine(), SimpleNamespace(environment=lambda problem: World())
    ctx = testing.context(engine=engine, task=task, models={"policy": model})
    (played,) = asyncio.run(Episode().group(Request(Problem("t", "0", ""), 1), ctx))
    between = pieces.encode(" sat ")
    wanted = np.concatenate([pieces.encode("the mat"), said, between])
    assert engine.asked[1].tolist() == wanted.tolist()
    batch = pack([played])
    assert batch["mask"].any(1).sum() == 1  # both turns are one row
    assert batch["action"][0][batch["mask"][0]].tolist() == [*said, *said]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_names_tests_and_scripts_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert named, "no test"
    for file, name in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file}::{name}"
    scripts = re.findall(r"benchmarks/conformance/(\w+\.py)", text)
    assert "read, not run" in text or scripts
    assert all((ROOT / "benchmarks" / "conformance" / s).is_file() for s in scripts)
    assert f"conformance/{page.name}" in (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
