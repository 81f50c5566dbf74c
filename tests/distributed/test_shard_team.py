"""A recipe whose model is trained in shards: weights are those of one process, a run goes on to the same bits, and what
cannot be so is refused. Learners import torch and transformers: seconds each time that some begin."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, load
from shuhari.distributed.devices import find_missing
from shuhari.distributed.processes import RankError
from shuhari.loop.run import loop, open_run, train
from shuhari.models.text.causal import Causal
from shuhari.store import Run as Stored

pytestmark = pytest.mark.timeout(300)  # processes that import torch, on two cores
RECIPE = """threads = 1
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 12
layers = 2
heads = 2
intermediate = 22
context = 64
config.num_key_value_heads = 1
[models.reference]
init = "policy"
frozen = true
[rollout]
n = 4
sampling.max_new = 3
[buffer]
size = 4
[reward.odd]
use = "{own}:odd"
[collect.advantage]
[part.policy]
minibatches = 2
terms.loss = {{use = "clip", reduce = "row"}}
terms.kl = {{use = "divergence", weight = 0.1}}
terms.pair = {{use = "log_ratio", centre = "mean", beta = 0.5, reduce = "row", weight = 0.5}}
optimiser.lr = {{from = 1e-2, to = 1e-3}}
optimiser.clip = 0.5
optimiser.weight_decay = 0.01
optimiser.reset = {{on = "step", every = 3}}
optimiser.store = "bfloat16"
[follow.policy]
of = "reference"
rate = 0.3
on = "step"
every = 2
[distributed]
learners = 2
shard = true
[[stage]]
name = "warm-up"
steps = 1
buffer = {{use = "demos", size = 1}}
remove = ["collect", "part"]
[stage.part]
policy.terms.nll.stream = "ce"
policy.optimiser.lr = 1e-2
[[stage]]
name = "rl"
steps = 4
"""
WHOLE = {"distributed.learners": 1, "distributed.shard": False}


def make_recipe(folder: Path) -> Recipe:
    file = folder / "shards.toml"
    own = Path(__file__).with_name("own_models.py")
    file.write_text(RECIPE.format(own=own))
    return load(file)


@pytest.fixture(scope="module")
def exact() -> Iterator[None]:
    """Models of this process are built in float64; learners have the type of what they are sent."""
    build = Causal.build

    def build_exactly(self: Causal, task: Any) -> None:
        build(self, task)
        self.module.double()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Causal, "build", build_exactly)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, exact: None) -> tuple[Path, Recipe, list[Any]]:
    """A run with two learners that nobody stopped, in `whole`, copies as of its third step in `killed` and `alone`."""
    folder = tmp_path_factory.mktemp("shards")
    recipe = make_recipe(folder).with_settings({"store.every": 1})
    run = open_run(recipe, folder / "whole")
    steps = loop(run)
    reports = [next(steps) for _ in range(3)]
    for name in ("killed", "alone"):
        shutil.copytree(folder / "whole", folder / name)
    reports += steps
    params = list(run.ctx.models["policy"].module.parameters())
    assert all(p.dtype == torch.float64 and p.grad is None for p in params)
    return folder, recipe, reports


def checkpoint(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = Stored(path).load(None)
    return tree


def flatten(tree: Any, at: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in flatten(x, f"{at}/{key}").items()}
    return {at: tree}


def find_hosts(pid: int) -> set[str]:
    """The addresses of this machine that a process has TCP sockets at, as the kernel writes them; empty where it has no
    table of them."""
    own, found = set(), set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            own.add(os.readlink(file))
    for table in (t for t in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if t.is_file()):
        rows = (line.split() for line in table.read_text().splitlines()[1:])
        found |= {row[1].rpartition(":")[0] for row in rows if f"socket:[{row[9]}]" in own}
    return found


def compare(a: Any, b: Any, off: float) -> list[str]:
    """Where weights and memories of two checkpoints are not the same, or of tensors further apart than `off`."""
    one, other = (flatten({k: t[k] for k in ("models", "components")}) for t in (a, b))
    assert one.keys() == other.keys() and len(one) > 100
    pairs = {k: (x, other[k]) for k, x in one.items()}
    return [k for k, (x, y) in pairs.items()
            if not (float((x - y).abs().max()) <= off if isinstance(x, torch.Tensor) else x == y)]  # fmt: skip


def test_weights_trained_in_shards_are_those_of_one_process(tmp_path: Path, whole: Any) -> None:
    """In float64, with what optimisers remember, exact weights beside rounded ones among it: an imitation of one row,
    which leaves a learner none, and four steps of reinforcement of two optimiser batches each, one term coupled; in
    between the optimiser is reset, and a follower moves the policy. And from a checkpoint of shards one process goes
    on."""
    folder, recipe, found = whole
    alone = recipe.with_settings(WHOLE)
    for a, b in zip(train(alone, tmp_path / "one"), found, strict=True):
        assert a.keys() == b.keys()
        assert a["reward/odd"] == b["reward/odd"] if a["stage"] == "rl" else a["policy/loss/nll"] > 1
        assert b["policy/grad_norm"] == pytest.approx(a["policy/grad_norm"], rel=1e-9)
        assert b["policy/grad_norm"] > 1e-3
    last = checkpoint(folder / "whole")
    assert compare(checkpoint(tmp_path / "one"), last, 1e-9) == []
    of = flatten(last["components"]).items()
    kinds = ("square", "weights")
    square, exact = (next(x for k, x in of if k.startswith("/rl") and k.endswith(f"/{n}/0")) for n in kinds)
    assert square.shape[1] == exact.shape[1] == 12 and float(square.sum()) > 0  # of a whole tensor
    assert (exact.bfloat16() != exact).any()  # what the optimiser keeps of weights is not what a model has of them
    assert [info["step"] for info in train(alone, folder / "alone")] == [4, 5]
    assert compare(checkpoint(folder / "alone"), last, 1e-9) == []


def test_a_run_in_shards_goes_on_to_the_same_bits(whole: Any) -> None:
    """From a copy that was made while it ran, and once more after a learner was killed."""
    folder, recipe, _ = whole
    run = open_run(recipe, folder / "killed")
    steps = loop(run)
    assert next(steps)["step"] == 4
    pid = run.ctx.team.processes.others[1].process.pid
    assert find_hosts(pid) <= {"0100007F"}  # 127.0.0.1
    assert find_hosts(pid) or not Path("/proc/net/tcp").is_file()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankError, match=r"learner 2 of 2 died while .*signal SIGKILL"):
        next(steps)
    assert run.ctx.team.processes.others == []
    assert [info["step"] for info in train(recipe, folder / "killed")] == [5]
    assert compare(checkpoint(folder / "whole"), checkpoint(folder / "killed"), 0) == []


@pytest.mark.parametrize(("settings", "told"), [
    ({"models.policy.architecture": "gpt2"}, r"models.policy has the layout 'gpt2': expected one of llama, mistral"),
    ({"models.policy.lora.rank": 2}, r"models\.policy\.lora trains adapters"),
    ({"models.policy.use": "causal_value"}, r"models\.policy has a value head"),
    ({"models.policy.device": "mps"}, r"models\.policy\.device is 'mps', and shards lie on CPUs or on CUDA"),
    ({"part.second": {"trains": ["policy"], "terms": {"clip": {}}, "optimiser": {"lr": 1e-3}}},
     r"stage 'rl' has 2 parts \(part.policy, part.second\).*expected one part"),
    ({"part.policy.trains": ["policy", "reference"]}, r"part\.policy trains policy, reference: expected one role"),
    ({"part.policy.terms.kl.form": "exact"}, r"part\.policy\.terms\.kl asks the model of reference"),
    ({"distributed.learners": 1}, r"shard is true, and learners is 1"),
])  # fmt: skip
def test_what_cannot_be_in_shards_is_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    recipe = make_recipe(tmp_path)
    with pytest.raises(RecipeError, match=told) as raised:
        open_run(recipe.with_settings(settings))
    assert "distributed" in raised.value.where and "shard = false" in str(raised.value)


@pytest.mark.parametrize(("device", "count", "nccl", "told"), [
    ("cuda", 0, True, r"device is 'cuda', and torch .* finds no CUDA device here: expected cpu"),
    ("cuda", 4, False, r"device is 'cuda', and torch .* was built without NCCL"),
    ("cuda", 1, True, r"2 learners have a GPU each from cuda:0 on, and there are 1: expected cpu, fewer learners"),
    ("cuda:1", 2, True, r"2 learners have a GPU each from cuda:1 on, and there are 2"),
])  # fmt: skip
def test_shards_on_gpus_are_refused_by_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, count: int, nccl: bool, told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    with pytest.raises(RecipeError, match=told) as raised:
        open_run(make_recipe(tmp_path).with_settings({"models.policy.device": device}))
    assert "distributed" in raised.value.where and "shard = false" in str(raised.value)


@pytest.mark.parametrize(("first", "size"), [(0, 1), (0, 2), (1, 1)])
def test_gpus_that_are_there_suffice(monkeypatch: pytest.MonkeyPatch, first: int, size: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert find_missing(first, size) == ""
