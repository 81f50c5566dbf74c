"""`plan`: what it says of a profiled run, which mistakes it tells, and the comparison with the literature."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.planning import published
from shuhari.desk.planning.measured import measure
from shuhari.store import Run
from small_runs import write_sums


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shuhari.desk.cli import main

    home = tmp_path_factory.mktemp("plan")
    (home / "sums.toml").write_text(write_sums(steps=6, size=4) + '[store]\ngroups = ["all"]\n')
    with pytest.raises(SystemExit) as end:
        main(["train", str(home / "sums.toml"), "--profile", "--run", str(home / "run")])
    assert end.value.code in (0, None)
    return home / "run"


def test_a_run_is_measured(profiled: Path) -> None:
    found = measure(profiled)
    run = Run(profiled)
    answers = [t for step in range(1, 7) for g in run.rollouts(step) for t in g["trajectories"]]
    lengths = [len(t.steps[0].action) for t in answers]
    assert found.workload.written == pytest.approx(sum(lengths) / len(lengths)) and found.workload.size == 4
    assert found.setting.groups == 4 and found.setting.mode == "sync" and found.setting.shared
    model = sum(p.numel() * 4 for p in _weights(profiled))
    assert found.hardware.weights == model
    assert found.hardware.step + found.hardware.row > 0 and found.hardware.update + found.hardware.train > 0
    assert found.hardware.kept > 0 and not found.workload.waits
    wall = run.metrics()["wall"]
    assert found.seconds == pytest.approx((wall[-2] - wall[0]) / 4)


def _weights(path: Path) -> list[Any]:
    tree = Run(path).load()
    return list(tree["models"]["policy"].values())


def test_a_plan_is_printed(shuhari, profiled: Path) -> None:  # type: ignore[no-untyped-def]
    done = shuhari("plan", profiled, "--devices", 4, "--price", 2.5)
    assert done.code == 0 and "partial" in done.out and "a million tokens" in done.out
    found = json.loads(shuhari("plan", profiled, "--devices", 4, "--split", 3, "--staleness", 2, "--json").out)
    assert [p["setting"]["mode"] for p in found["plans"]] == ["sync", "async", "partial"]
    assert [p["setting"]["sampling"] for p in found["plans"]] == [4, 3, 3]
    assert found["plans"][2]["outcome"]["staleness_max"] <= 2
    slower = json.loads(
        shuhari("plan", profiled, "--here", "--set", "train=1", "--set", "update=0", "--set", "groups=2", "--json").out
    )
    tokens = 2 * 4 * slower["answers"]["trained"]
    assert slower["plans"][0]["outcome"]["seconds"] == pytest.approx(tokens, rel=0.2)  # a second a token
    many = shuhari("plan", profiled, "--mode", "partial", "--split", 4, "--scale", 64)
    assert many.code == 0 and "bottleneck" in many.out and "fills a step" in many.out


def test_mistakes_are_told(shuhari, profiled: Path, made: Path) -> None:  # type: ignore[no-untyped-def]
    for argv, said in (
        ((), "of which run?"),
        ((made / "runs" / "s0",), "--profile"),
        ((profiled, "--mode", "asynch"), "'async'"),
        ((profiled, "--split", "8"), "from 1 to 7"),
        ((profiled, "--set", "bandwith=1"), "'bandwidth'"),
        ((profiled, "--set", "slots=many"), "slots: 'many': expected a whole number"),
        ((profiled, "--set", "length=-1"), "length: -1: expected a number above 0"),
        ((profiled, "--set", "length=abc"), "length: 'abc': expected a number"),
        ((profiled, "--set", "groups=0"), "groups: 0: expected a number of 1 or more"),
        ((profiled, "--set", "wait=-1"), "wait: -1: expected a number of 0 or more"),
        ((profiled, "--set", "spread=sta"), "did you mean 'star'"),
        ((profiled, "--set", "step=0", "--set", "row=0"), "takes no time"),
        ((profiled, "--devices", 1, "--mode", "partial"), "cannot be split"),
    ):
        done = shuhari("plan", *argv)
        told = " ".join(done.err.replace("│", " ").split())
        assert done.code == 2 and said in told, (argv, done.err)


def test_what_a_run_lacks_is_told_one_by_one(shuhari, profiled: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(profiled, there := tmp_path / "run")
    profile = json.loads((there / "profile.json").read_text())
    for path, phase in profile["phases"].items():
        if path.endswith("generate"):
            phase["products"] = []
    (there / "profile.json").write_text(json.dumps(profile))
    err = shuhari("plan", there).err
    assert "has no timings of a decoder" in err and "--profile" not in err and "store" not in err
    (there / "profile.json").unlink()
    err = shuhari("plan", there).err
    assert "has no profile" in err and "--profile" in err and "decoder" not in err


def test_the_literature_stands_beside_what_is_planned(shuhari, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    case = published.CASES[-1]
    small = replace(case, groups=4, n=4, fast=replace(case.fast, groups=4, steps=4))
    monkeypatch.setattr(published, "CASES", (small,))
    found = json.loads(shuhari("plan", "--published", "--json").out)
    assert found[0]["published"] == pytest.approx(1414 / 1102) and found[0]["assumed"] and found[0]["source"]
    assert found[0]["error"] == pytest.approx(found[0]["planned"] / found[0]["published"] - 1)
    assert "1.28" in shuhari("plan", "--published").out


def test_published_numbers_are_those_of_the_sources() -> None:
    """The ratios that their authors give: AReaL 2.77, verl 2.35 to 2.67, NeMo-RL 1,102 to 1,414 tokens a second."""
    given = {c.name: c.speedup for c in published.CASES}
    assert given["AReaL, R1-Distill-Qwen-1.5B, 128 H800"] == pytest.approx(2.77, abs=0.005)
    assert 2.35 <= given["verl, Qwen2.5-Math-7B, 64 + 64 H20"] <= 2.67
    assert all(c.assumed and c.source for c in published.CASES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan",), "error: of which run?"),
        (("plan", "s0", "--split", "x"), "error: --split: 'x': expected `auto`"),
        (("serve", "s0@99", "--port", "0"), "error: "),
        (("serve", "s0", "--host", "0.0.0.0", "--port", "0"), "error: --key-env: "),
        (("serve", "s0", "--prt", "0"), "error: No such option: --prt"),
        (("train", "tiny.toml", "--set", "nonsense=1"), "error: nonsense: "),
        (("train", "tiny.toml", "--init", "nobody"), "error: "),
    ],
)
def test_mistakes_have_one_form_whatever_the_command(home: Path, shuhari, words: tuple[str, ...], said: str) -> None:
    done = shuhari(*words)
    assert done.code == 2 and done.err.startswith(said) and not set("│╭╰") & set(done.err), done.err
