"""Learners over several processes: gradients, reports and runs are those of one, and an end is told in words."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, dump, load
from shuhari.distributed import shares
from shuhari.distributed.devices import check_devices, move_models
from shuhari.distributed.processes import Processes, RankError
from shuhari.events import Collected
from shuhari.learners.loss import Loss
from shuhari.loop.run import Run, loop, open_run, train
from shuhari.needs import gather
from shuhari.objectives.clip import Clip
from shuhari.store.codec import dumps, loads

pytestmark = pytest.mark.timeout(300)  # processes that import torch, on two cores
RECIPE = """threads = 1
steps = {steps}
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 2
heads = 2
intermediate = 32
[models.critic]
use = "causal_value"
hidden = 8
layers = 1
heads = 2
intermediate = 16
[models.reference]
init = "policy"
frozen = true
[rollout]
n = 4
sampling.max_new = 3
[buffer]
size = 5
[reward.odd]
use = "{own}:odd"
[transform.gae]
scale = "batch"
[part.policy]
terms.loss = {{use = "clip"}}
terms.kl = {{use = "divergence", weight = 0.1}}
terms.entropy = {{weight = 0.01}}
optimiser.lr = 1e-2
[part.coupled]
trains = ["policy"]
terms.loss = {{use = "clip", reduce = "row"}}
terms.pair = {{use = "log_ratio", centre = "mean", beta = 0.5, reduce = "row", weight = 0.5}}
optimiser.lr = 1e-2
[models.small]
use = "{own}:Unigram"
[part.small]
terms.flat = {{use = "log_ratio", role = "small", over = "behaviour", beta = 0.5, reduce = "row"}}
optimiser.lr = 1e-2
[part.critic]
terms.value = {{}}
optimiser.lr = 1e-2
[distributed]
learners = {learners}
"""


def make_recipe(folder: Path, learners: int = 1, steps: int = 2) -> Recipe:
    file = folder / f"learners-{learners}-{steps}.toml"
    file.write_text(RECIPE.format(learners=learners, steps=steps, own=Path(__file__).with_name("own_models.py")))
    return load(file)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Batch]]:
    """A run with four learners in float64, and what it drew first. Three processes import torch: seconds."""
    run = open_run(make_recipe(tmp_path_factory.mktemp("four"), 4))
    with run:
        run.enter_stage()
        run.tell(Collected(run.apply(run.stage.collect, run.collect(run.wanted())), tuple(run.ctx.latest)))
        learner = run.stage.learners["main"]
        batch = run.apply(learner.transforms, next(run.draws("main", learner)), learner)
        for model in run.ctx.models.values():
            model.module.double()
            for p in model.module.parameters():
                p.data += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).double()
        learner.bind(run.ctx.models)
        x = torch.randn(batch["mask"].shape, generator=torch.Generator().manual_seed(5)) * batch["mask"]
        yield run, batch.put({"advantage": x, "return": x})


def losses(run: Run, batch: Batch, name: str, tokens: int | None) -> tuple[Loss, Loss]:
    """The loss of a part by one process, and by all of them."""
    learner: Any = run.stage.learners["main"]
    part, params = learner.parts[name], learner._params[name]
    batch = gather(batch, part.needs, run.ctx.models)
    alone = Loss(batch.take(torch.arange(len(batch))), part, name, run.ctx, params, None)
    return alone, Loss(batch, part, name, run.ctx, params, tokens, None, ("main", name))


@pytest.mark.parametrize("tokens", [None, 40])
@pytest.mark.parametrize("name", ["policy", "coupled", "critic"])
def test_gradients_of_four_processes_are_those_of_one(drawn: Any, name: str, tokens: int | None) -> None:
    """The oracle is the loss on the whole batch in one piece, which `test_gradient` holds to one written out."""
    run, batch = drawn
    alone, shared = losses(run, batch, name, tokens)
    assert shared.work is not shared.here and sorted(torch.cat(shared.work.rows).tolist()) == list(range(len(batch)))  # type: ignore[attr-defined]
    want, params = alone.backward(), alone.params
    grads = [None if p.grad is None else p.grad.clone() for p in params]
    got = shared.backward()
    assert sum(float(g.abs().sum()) for g in grads if g is not None) > 1e-3
    for g, p in zip(grads, params, strict=True):
        assert (g is None) == (p.grad is None)
        if g is not None:
            assert p.grad is not None and float((g - p.grad).abs().max()) < 1e-12
            p.grad = None
    assert got == pytest.approx(want, rel=1e-6, nan_ok=True)  # reported in float32


def test_weights_that_moved_are_sent_and_others_are_not(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, batch = drawn
    asked: list[Any] = []
    ask_all = Processes.ask_all

    def note(self: Any, what: str, **rest: Any) -> None:
        asked.append((what, rest))
        ask_all(self, what, **rest)

    monkeypatch.setattr(Processes, "ask_all", note)
    learner: Any = run.stage.learners["main"]
    losses(run, batch, "critic", None)[1].backward()  # after which only the critic may have moved
    asked.clear()
    with torch.no_grad():
        for p in learner._params["critic"]:
            p.data += 0.1  # counts no version, as a fused kernel does not
    alone, shared = losses(run, batch, "critic", None)
    alone.backward()
    want = [p.grad.clone() for p in alone.params if p.grad is not None]
    shared.backward()
    assert all(float((g - p.grad).abs().max()) < 1e-12 for g, p in zip(want, alone.params, strict=True))
    sent = [set(rest["names"]) for what, rest in asked if what == "weights"]
    assert sent and all(n.startswith("critic/") for n in sent[0])


def test_what_trust_regions_ask_is_shared_too(drawn: Any) -> None:
    run, batch = drawn
    alone, shared = losses(run, batch, "coupled", 40)
    assert shared.values() == pytest.approx(alone.values(), abs=1e-12)
    found = shared.gradients()
    for term, g in alone.gradients().items():
        assert float(g.abs().max()) > 1e-4 and float((found[term] - g).abs().max()) < 1e-12
    alone, shared = losses(run, batch, "small", 40)
    vector = torch.randn(sum(p.numel() for p in alone.params), generator=torch.Generator().manual_seed(0)).double()
    want = alone.hvp("flat", vector)
    assert float(want.abs().max()) > 1e-4 and float((shared.hvp("flat", vector) - want).abs().max()) < 1e-12


def test_a_share_is_computed_with_what_lies_ahead_and_behind() -> None:
    """A target of two steps and an outcome of whole episodes, from a share's plain data and from the whole batch."""
    whole = testing.transitions([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0], [7.0], [8.0, 9.0, 1.0]])
    parts = shares.cut_shares(whole, 3, packed=False)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(whole)))
    assert {len(whole.take(rows)) for rows in parts} <= {4, 5}
    for rows in parts:
        want = whole.take(rows).put({"mine": rows})
        got = shares.unpack_share(loads(dumps(shares.pack_share(want))))
        assert got["mine"].tolist() == rows.tolist()
        assert got.successors(2)["reward"].tolist() == want.successors(2)["reward"].tolist()
        assert got.outcome().tolist() == want.outcome().tolist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The steps of a run with two learners that nobody stopped."""
    return list(train(make_recipe(tmp_path_factory.mktemp("two"), 2, 4)))


def test_a_run_with_two_learners_has_the_rewards_of_one(tmp_path: Path, whole: list[Any]) -> None:
    one = list(train(make_recipe(tmp_path, 1, 4)))
    for a, b in zip(one, whole, strict=True):
        assert 0.1 < a["reward/odd"] == b["reward/odd"] and a["rollout/length"] == b["rollout/length"]
        for part in ("policy", "coupled", "critic", "small"):
            assert b[f"{part}/grad_norm"] == pytest.approx(a[f"{part}/grad_norm"], rel=1e-3)
    norms = [(a[f"{part}/grad_norm"], b[f"{part}/grad_norm"]) for a, b in zip(one, whole, strict=True)
             for part in ("policy", "coupled", "critic", "small")]  # fmt: skip
    assert any(a != b for a, b in norms)  # they are added up in another order


KILLED = """
import os, signal, sys
from shuhari.config.recipe import load
from shuhari.loop.run import open_run, loop
run = open_run(load(sys.argv[1]), __import__("pathlib").Path(sys.argv[2]))
for info in loop(run):
    print(*(o.process.pid for o in run.ctx.team.processes.others), flush=True)
    if info["step"] == 2 and sys.argv[3] == "rank":
        os.kill(run.ctx.team.processes.others[0].process.pid, signal.SIGKILL)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(gone: list[int]) -> None:
    until = time.monotonic() + 20
    while any(map(alive, gone)):
        assert time.monotonic() < until, "orphans"
        time.sleep(0.05)


@pytest.mark.parametrize("whom", ["rank", "driver"])
def test_who_dies_takes_the_others_along_and_the_run_resumes(tmp_path: Path, whole: list[Any], whom: str) -> None:
    """To the same bits with as many learners, and as close as float32 adds up with one."""
    recipe, run = make_recipe(tmp_path, 2, 4).with_settings({"store.every": 1}), tmp_path / "run"
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    child = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "recipe.toml", run, whom],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert child.stdout is not None
    (pid,) = (int(x) for x in child.stdout.readline().split())
    assert alive(pid)
    if whom == "driver":
        child.send_signal(signal.SIGKILL)
    _, told = child.communicate(timeout=120)
    until = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < until, "an orphan"
        time.sleep(0.05)
    if whom == "rank":
        assert child.returncode == 1
        assert "RankError: learner 1 of 2 died while" in told and "signal SIGKILL" in told
    if whom == "driver":
        return
    shutil.copytree(run, tmp_path / "alone")
    rest = list(train(recipe, run))
    assert 2 <= rest[0]["step"] <= 3 and rest[-1]["step"] == 4
    norms = [f"{part}/grad_norm" for part in ("policy", "coupled", "critic", "small")]
    assert [rest[-1][n] for n in norms] == [whole[-1][n] for n in norms]
    alone = list(train(recipe.with_settings({"distributed.learners": 1}), tmp_path / "alone"))
    assert [alone[-1][n] for n in norms] == pytest.approx([whole[-1][n] for n in norms], rel=1e-3)


def test_a_failure_in_a_process_shows_where(tmp_path: Path) -> None:
    """A learner imports what a recipe names anew; here it is gone by then."""
    code = tmp_path / "own.py"
    code.write_text("from shuhari.objectives.value import Value as Mine\n")
    recipe = make_recipe(tmp_path, 2).with_settings({"part.critic.terms.value.use": f"{code}:Mine"})
    run = open_run(recipe)
    code.write_text("raise RuntimeError('no such luck')\n")
    with pytest.raises(RankError, match=r"(?s)learner 1 of 2 failed while starting \(exit code 1\).*no such luck"):
        list(loop(run))


def test_what_learners_cannot_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"distributed\.learners"):
        open_run(make_recipe(tmp_path).with_settings({"distributed.learners": 0}))
    recipe = make_recipe(tmp_path, 2)
    monkeypatch.setattr(Clip, "state", {}, raising=False)
    with pytest.raises(ValueError, match=r"part.policy.terms.loss remembers"):
        open_run(recipe)


def test_each_learner_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = {"policy": SimpleNamespace(model=SimpleNamespace(device="cuda:1")), "copy": SimpleNamespace(model=None)}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert check_devices(roles, 3)
    with pytest.raises(ValueError, match=r"learners is 4.*from cuda:1 on, and there are 4: expected at most 3"):
        check_devices(roles, 4)
    move_models(roles, 2)
    assert roles["policy"].model.device == "cuda:3"
    roles["policy"].model.device = "mps"
    with pytest.raises(ValueError, match=r"models\.policy\.device is 'mps'"):
        check_devices(roles, 2)


