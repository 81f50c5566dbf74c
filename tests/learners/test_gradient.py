"""The gradient of an optimiser batch is the same however it is cut, and equals the loss written out plainly."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shuhari.batch import Batch
from shuhari.data import EMPTY, Problem, Request, Step, Trajectory
from shuhari.learners.gradient import GradientLearner, Loss, Part, Term
from shuhari.needs import Need
from shuhari.pack import pack
from shuhari.ratio import log_ratio
from shuhari.reduce import group_mean

LIVE = Need(("policy",), "log_prob", live=True)
VOCAB = 5


class Unigram:
    """Token logits that do not look at the context: small, and ragged like a language model."""

    kind = "exact"

    def __init__(self) -> None:
        self.module = nn.Embedding(VOCAB, VOCAB)

    def __call__(self, batch: Batch) -> Any:
        seen = torch.tensor([int(s.context[-1]) for s in batch.steps])
        logits = self.module(seen)[:, None].expand(-1, batch.width, -1)
        logs = logits.log_softmax(-1)
        return SimpleNamespace(
            log_prob=lambda: logs.gather(-1, batch["action"][:, : batch.width, None]).squeeze(-1),
            entropy=lambda: -(logs.exp() * logs).sum(-1),
        )


@dataclass
class Surrogate:
    needs: tuple[Need, ...] = (LIVE,)
    couples: str = "row"

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        r, a = log_ratio(batch[LIVE], batch["logp"], batch).exp(), batch["advantage"]
        return -torch.minimum(r * a, r.clamp(0.9, 1.1) * a), {"ratio": r}


@dataclass
class GroupLogistic:
    """A logistic loss on the row's log-ratio minus the group's mean: every row of a group moves every other."""

    needs: tuple[Need, ...] = (LIVE,)
    couples: str = "batch"

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        s = log_ratio(batch[LIVE], batch["logp"], batch, "row")[:, 0]
        mean, _ = group_mean(batch, s)
        y = (batch["advantage"][:, 0] > 0).float()
        return F.binary_cross_entropy_with_logits(s - mean, y, reduction="none"), {}


@dataclass
class Recorder:
    """An optimiser that keeps the gradient and moves nothing."""

    seen: list[Any] = field(default_factory=list)

    def bind(self, params: Any) -> None:
        self.params = list(params)

    def step(self, evaluate: Loss, at: float) -> Any:
        info = evaluate.backward()
        self.seen.append(torch.cat([p.grad.flatten() for p in self.params]))
        return info


def context(model: Any) -> Any:
    def rng(*key: object) -> torch.Generator:
        return torch.Generator().manual_seed(7)

    return SimpleNamespace(
        models={"policy": model}, at=lambda x: x, rng=rng, charge=lambda *_: None, count=0.0, salt=()
    )


def batch_of(rows: int = 12, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    trajectories = []
    for i in range(rows):
        k = int(rng.integers(1, 7))
        request = Request(Problem("t", f"p{i // 3}", None), 3, key=f"g{i // 3}")
        logp = rng.normal(-1.5, 0.3, k).astype(np.float32)
        step = Step.of(rng.integers(0, VOCAB, 3).astype(np.int32), rng.integers(0, VOCAB, k).astype(np.int32), logp)
        trajectories.append(Trajectory(request, (step,)))
    batch = pack(trajectories)
    advantage = torch.from_numpy(rng.normal(size=rows).astype(np.float32))[:, None] * batch["mask"]
    batch = batch.put({"advantage": advantage})
    batch.stream = "rl"
    return batch


def gradient(objective: Any, batch: Batch, tokens: int | None, reduce: str = "decision") -> tuple[torch.Tensor, Any]:
    torch.manual_seed(3)
    model, recorder = Unigram(), Recorder()
    part = Part(("policy",), {"loss": Term(objective, reduce=reduce)}, recorder)
    learner = GradientLearner(SimpleNamespace(), {"policy": part}, EMPTY, tokens)
    learner.bind({"policy": model})
    info = learner.update(batch, context(model)).info
    return recorder.seen[0], info


@pytest.mark.parametrize("reduce", ["decision", "row", "episode", "group", "constant:4"])
@pytest.mark.parametrize("objective", [Surrogate(), GroupLogistic()], ids=["clip", "group-logistic"])
@pytest.mark.parametrize("tokens", [9, 20, 40])
def test_micro_batches_change_nothing(objective: Any, tokens: int, reduce: str) -> None:
    batch = batch_of()
    whole, info = gradient(objective, batch, None, reduce)
    cut, cut_info = gradient(objective, batch, tokens, reduce)
    assert whole.norm() > 1e-3
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-6)
    assert cut_info.keys() == info.keys()
    for name, value in info.items():
        assert cut_info[name] == pytest.approx(value, abs=1e-5), name


def test_the_gradient_is_that_of_the_loss_written_out() -> None:
    batch = batch_of()
    grad, _ = gradient(Surrogate(), batch, 10)
    torch.manual_seed(3)
    table = nn.Embedding(VOCAB, VOCAB)
    total, n = torch.zeros(()), 0
    for i, step in enumerate(batch.steps):
        logs = table(torch.tensor(int(step.context[-1]))).log_softmax(-1)
        for k, token in enumerate(step.action):
            r = (logs[int(token)] - float(step.logp[k])).exp()
            a = batch["advantage"][i, k]
            total = total - torch.minimum(r * a, r.clamp(0.9, 1.1) * a)
            n += 1
    expected = torch.autograd.grad(total / n, table.weight)[0].flatten()
    torch.testing.assert_close(grad, expected, atol=1e-6, rtol=1e-5)


def test_a_term_never_sees_rows_without_its_stream() -> None:
    batch = batch_of()
    poisoned = batch["logp"].clone()
    poisoned[:4] = torch.nan
    weight = batch["mask"].float()
    weight[:4] = 0
    batch.stream = None
    masked = batch.put({"logp": poisoned, "weight/rl": weight})
    grad, info = gradient(Surrogate(), masked, None)
    kept = batch.take(torch.arange(4, len(batch)))
    kept.stream = "rl"
    expected, _ = gradient(Surrogate(), kept, None)
    torch.testing.assert_close(grad, expected)
    assert info["policy/rows"] == len(batch) - 4


def test_an_update_without_rows_is_reported_and_moves_nothing() -> None:
    batch = batch_of()
    batch.stream = None
    batch = batch.put({"weight/rl": torch.zeros_like(batch["logp"])})
    model, recorder = Unigram(), Recorder()
    learner = GradientLearner(SimpleNamespace(), {"policy": Part(("policy",), {"loss": Term(Surrogate())}, recorder)})
    learner.bind({"policy": model})
    assert learner.update(batch, context(model)).info["policy/rows"] == 0
    assert not recorder.seen


def test_minibatches_keep_a_coupled_group_whole() -> None:
    batch, groups = batch_of(), []

    @dataclass
    class Watch(GroupLogistic):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            groups.append(set(batch["group"].tolist()))
            return super().__call__(batch, ctx)

    model = Unigram()
    part = Part(("policy",), {"loss": Term(Watch())}, Recorder(), minibatches=2)
    learner = GradientLearner(SimpleNamespace(), {"policy": part})
    learner.bind({"policy": model})
    learner.update(batch, context(model))
    assert len(groups) == 2
    assert not groups[0] & groups[1]
    assert groups[0] | groups[1] == set(batch["group"].tolist())


def test_parts_obey_every_and_after() -> None:
    model = Unigram()
    often, seldom = Recorder(), Recorder()
    parts = {
        "often": Part(("policy",), {"loss": Term(Surrogate())}, often),
        "seldom": Part(("policy",), {"loss": Term(Surrogate())}, seldom, every=2, after=1),
    }
    learner = GradientLearner(SimpleNamespace(), parts)
    learner.bind({"policy": model})
    for _ in range(4):
        learner.update(batch_of(), context(model))
    assert (len(often.seen), len(seldom.seen)) == (4, 2)


def test_what_a_loss_stamps_reaches_later_parts_and_the_event() -> None:
    batch, read = batch_of(), []

    @dataclass
    class Stamp(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            batch.stamp("fresh", batch["id"].float())
            return super().__call__(batch, ctx)

    @dataclass
    class Read(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            read.append(torch.equal(batch["fresh"], batch["id"].float()))
            return super().__call__(batch, ctx)

    model = Unigram()
    parts = {
        "a": Part(("policy",), {"loss": Term(Stamp())}, Recorder(), minibatches=3),
        "b": Part(("policy",), {"loss": Term(Read())}, Recorder()),
    }
    learner = GradientLearner(SimpleNamespace(), parts, tokens=12)
    learner.bind({"policy": model})
    event = learner.update(batch, context(model))
    assert read
    assert all(read)
    assert torch.equal(event.columns["fresh"], event.ids.float())


def test_gradients_values_and_hessian_products() -> None:
    batch = batch_of()
    torch.manual_seed(3)
    model = Unigram()
    part = Part(("policy",), {"a": Term(Surrogate()), "b": Term(GroupLogistic(), weight=0.5)}, Recorder())
    params = list(model.module.parameters())
    loss = Loss(batch, part, "policy", context(model), params, None)
    grads = loss.gradients()
    loss.backward()
    torch.testing.assert_close(grads["a"] + grads["b"], params[0].grad.flatten())
    v, eps = torch.randn(grads["b"].shape, generator=torch.Generator().manual_seed(0)), 1e-3
    exact = loss.hvp("b", v)
    with torch.no_grad():
        params[0] += eps * v.view_as(params[0])
    up = loss.gradients()["b"]
    with torch.no_grad():
        params[0] -= 2 * eps * v.view_as(params[0])
    torch.testing.assert_close(exact, (up - loss.gradients()["b"]) / (2 * eps), atol=2e-3, rtol=2e-2)
    assert set(loss.values()) == {"a", "b"}
