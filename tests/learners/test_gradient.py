"""The gradient of an optimiser batch is the same however it is cut, and equals the loss written out plainly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import EMPTY, Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.reduce import group_mean
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.store.codec import dumps, loads

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
    return testing.context(1, models={"policy": model})


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


@dataclass
class Noisy:
    """A loss with a number drawn for each row, also for its successor; it says what it drew."""

    needs: tuple[Need, ...] = (LIVE,)
    couples: str = "row"
    drawn: dict[int, float] = field(default_factory=dict)

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        x = ctx.noise(batch, "x").normal(0) + ctx.noise(batch.successors(), "ahead").normal(0)
        self.drawn |= dict(zip(batch["id"].tolist(), x.tolist(), strict=True))
        return -x[:, None] * batch[LIVE], {"drawn": x}


@dataclass
class NoisyPairs(Noisy):
    couples: str = "batch"


def streams_of(rows: int = 12) -> Batch:
    """Rows 0 to 4 carry `rl`, with what is NaN elsewhere; rows 3 to 8 carry `ce`, and the others nothing."""
    batch = batch_of(rows)
    at = torch.arange(rows)[:, None]
    batch.stream = None
    weights = {"weight/rl": (at < 5) * 0.5 * batch["mask"], "weight/ce": ((at > 2) & (at < 9)) * batch["mask"].float()}
    return batch.put({**weights, "logp": batch["logp"].masked_fill(at >= 5, torch.nan)})


def both(terms: dict[str, Term], batch: Batch, tokens: int | None, minibatches: int = 1) -> tuple[Any, Any]:
    """(the gradients, infos) of one part with several terms."""
    torch.manual_seed(3)
    model, recorder = Unigram(), Recorder()
    part = Part(("policy",), terms, recorder, minibatches=minibatches)
    learner = GradientLearner(SimpleNamespace(), {"policy": part}, EMPTY, tokens)
    learner.bind({"policy": model})
    return recorder.seen, learner.update(batch, context(model)).info


@pytest.mark.parametrize("tokens", [7, 9, 20, 40])
@pytest.mark.parametrize("reduce", ["decision", "row"])
@pytest.mark.parametrize("noisy", [Noisy, NoisyPairs])
def test_micro_batches_change_nothing_for_terms_on_two_streams(noisy: Any, reduce: str, tokens: int) -> None:
    def terms() -> dict[str, Term]:
        return {"clip": Term(Surrogate(), reduce=reduce), "noise": Term(noisy(), "ce", 2.0, reduce)}

    one, other = terms(), terms()
    [whole], info = both(one, streams_of(), None)
    [cut], cut_info = both(other, streams_of(), tokens)
    assert whole.norm() > 1e-3
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-6)
    assert one["noise"].objective.drawn == other["noise"].objective.drawn  # type: ignore[attr-defined]
    assert cut_info.keys() == info.keys() == {
        "policy/rows", "policy/loss/clip", "policy/loss/noise", "policy/ratio", "policy/drawn"
    }  # fmt: skip
    assert cut_info == pytest.approx(info, abs=1e-5)
    x = one["noise"].objective.drawn  # type: ignore[attr-defined]
    assert sorted(x) == list(range(3, 9))  # the rows of its stream
    assert info["policy/drawn"] == pytest.approx(sum(x.values()) / 6, abs=1e-6)


def test_noise_hangs_on_the_row_and_the_term() -> None:
    """Rows that a part leaves out change nothing for the others; two terms draw differently; re-evaluations alike."""
    batch = streams_of()
    terms = {"a": Term(Noisy(), "ce"), "b": Term(Noisy(), "ce")}
    both(terms, batch, None)
    a, b = (t.objective.drawn for t in terms.values())  # type: ignore[attr-defined]
    assert a.keys() == b.keys() == set(range(3, 9))
    assert all(a[i] != b[i] for i in a)
    model = Unigram()
    ctx = context(model)
    ctx.within = ("here",)
    loss = Loss(batch, Part(("policy",), terms, Recorder()), "policy", ctx, list(model.module.parameters()), 20)
    seen = []
    for evaluate in (loss.backward, loss.values, loss.gradients, loss.backward):
        terms["a"].objective.drawn = {}  # type: ignore[attr-defined]
        evaluate()
        seen.append(terms["a"].objective.drawn)  # type: ignore[attr-defined]
    assert all(x == seen[0] for x in seen)
    assert ctx.within == ("here",)


def test_names_of_losses_and_infos() -> None:
    batch = batch_of()

    @dataclass
    class Named(Surrogate):
        infos: tuple[str, ...] = ()

        def __call__(self, batch: Batch, ctx: Any) -> Any:
            return super().__call__(batch, ctx)[0], {k: torch.ones(len(batch)) for k in self.infos}

    terms = {"kl": Term(Named(infos=("kl", "both", "lr"))), "b": Term(Named(infos=("both", "own")))}
    _, info = both(terms, batch, 20)
    names = {"rows", "loss/kl", "loss/b", "kl", "own", "kl/both", "b/both", "kl/lr"}  # lr is what an optimiser says
    assert info.keys() == {f"policy/{n}" for n in names}
    assert info["policy/kl"] == 1

    # a name that two terms ever shared does not come and go with the rows of one of them
    model, batch = Unigram(), streams_of()
    both_streams = {"a": Term(Named(infos=("x",))), "b": Term(Named(infos=("x",)), "ce")}
    learner = GradientLearner(SimpleNamespace(), {"policy": Part(("policy",), both_streams, Recorder())})
    learner.bind({"policy": model})
    first = learner.update(batch.put({"logp": torch.zeros_like(batch["logp"])}), context(model)).info
    again = GradientLearner(SimpleNamespace(), {"policy": Part(("policy",), both_streams, Recorder())})
    again.bind({"policy": model})
    again.state = loads(dumps(learner.state))
    for one in (learner, again):
        second = one.update(batch.put({"weight/ce": torch.zeros_like(batch["logp"])}), context(model)).info
        assert first.keys() - second.keys() == {"policy/loss/b", "policy/b/x"}
        assert "policy/a/x" in second


@pytest.mark.parametrize(("tokens", "minibatches"), [(None, 1), (None, 3), (12, 1), (12, 2)])
def test_whole_numbers_are_stamped_too(tokens: int | None, minibatches: int) -> None:
    @dataclass
    class Stamp(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            batch.stamp("picked", batch["id"] + 1)
            batch.stamp("seen", torch.ones(len(batch), dtype=torch.bool))
            return super().__call__(batch, ctx)

    batch = streams_of()
    both({"loss": Term(Stamp())}, batch, tokens, minibatches)
    assert batch.stamps["picked"].tolist() == [1, 2, 3, 4, 5] + [-1] * 7
    assert batch.stamps["seen"].tolist() == [True] * 5 + [False] * 7


def test_a_coupled_term_without_rows_is_no_loss() -> None:
    batch = streams_of().put({"weight/ce": torch.zeros(12, 6)})
    alone, _ = both({"clip": Term(Surrogate())}, batch, 9)
    [cut], info = both({"clip": Term(Surrogate()), "pairs": Term(GroupLogistic(), "ce")}, batch, 9)
    torch.testing.assert_close(cut, alone[0])
    assert "policy/loss/pairs" not in info


def test_a_loss_of_links_is_taken_on_the_whole() -> None:
    """However it is cut: a micro-batch has not both ends of every link. It need not say that it couples."""

    @dataclass
    class Pairs(Surrogate):
        links: str = "pairs"

        def __call__(self, batch: Batch, ctx: Any) -> Any:
            s = (batch[LIVE] * batch["mask"]).sum(1)[batch.links["pairs"][0]]
            return -F.logsigmoid(s[:, 0] - s[:, 1]), {}

    batch = batch_of().link("pairs", torch.tensor([[0, 11], [5, 2], [7, 3]]))
    whole, info = gradient(Pairs(), batch, None)
    cut, cut_info = gradient(Pairs(), batch, 9)
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-6)
    assert cut_info == pytest.approx(info, abs=1e-6)
    index = batch.links["pairs"][0]
    single = [gradient(Pairs(), batch.link("pairs", index[i : i + 1]), 9)[0] for i in range(3)]
    weighed = batch.link("pairs", index, {"weight": torch.tensor([3.0, 0.0, float("nan")])})  # not told: 1
    mean = (3 * single[0] + single[2]) / 4
    torch.testing.assert_close(gradient(Pairs(), weighed, 9)[0], mean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_clip_of_episodes_refuses_a_part_of_one(minibatches: int) -> None:
    """Episodes of two rows; the second row of the first one weighs nothing, or lies in another minibatch."""
    steps = [Step.of(np.full(2, i, np.int32), np.ones(2, np.int32), np.zeros(2, np.float32)) for i in range(2)]
    request = Request(Problem("t", "p", None))
    chain = (steps[0], replace(steps[1], parent=0))
    batch = pack([Trajectory(request, chain), Trajectory(request, chain)])
    batch = batch.put({"advantage": batch["mask"].float()})
    batch.stream = "rl"
    model = Unigram()
    term = {"clip": Term(Clip(level="episode"))}

    def learn(batch: Batch, **fields: Any) -> Any:
        part = Part(("policy",), term, Recorder(), **fields)
        learner = GradientLearner(SimpleNamespace(), {"policy": part})
        learner.bind({"policy": model})
        return learner.update(batch, context(model)).info

    assert learn(batch)["policy/rows"] == 4
    weight = batch["mask"].float()
    weight[:2] = 0  # a whole episode
    assert learn(batch.put({"weight/rl": weight}))["policy/rows"] == 2
    weight[0] = 1
    with pytest.raises(ValueError, match="without 1 rows of its episodes"):
        learn(batch.put({"weight/rl": weight}))
    if minibatches > 1:
        with pytest.raises(ValueError, match="or in another minibatch"):
            learn(batch, minibatches=4, unit="row")
        learn(batch, minibatches=2, unit="episode")


def test_binding_again_changes_only_what_changed() -> None:
    model, other = Unigram(), Unigram()
    parts = {n: Part(("policy",) if n == "a" else ("critic",), {"l": Term(Surrogate())}, Recorder()) for n in "ab"}
    learner = GradientLearner(SimpleNamespace(), parts)
    learner.bind({"policy": model, "critic": other})
    bound = {n: p.optimiser.params for n, p in parts.items()}  # type: ignore[attr-defined]
    learner.bind({"policy": model, "critic": other})
    assert all(p.optimiser.params is bound[n] for n, p in parts.items())  # type: ignore[attr-defined]
    learner.bind({"policy": model, "critic": model})
    assert parts["a"].optimiser.params is bound["a"]  # type: ignore[attr-defined]
    assert parts["b"].optimiser.params[0] is model.module.weight  # type: ignore[attr-defined]


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


def test_an_objective_that_forgets_its_info_is_named() -> None:
    class Forgetful(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            return super().__call__(batch, ctx)[0]

    with pytest.raises(TypeError, match=r"term 'loss': Forgetful returned Tensor: expected \(loss, info\)"):
        gradient(Forgetful(), batch_of(), None)


@pytest.mark.parametrize(
    ("couples", "reduce", "told"),
    [("rows", "row", "couples is 'rows': expected 'row', or 'batch'"), ("row", "decison", "did you mean 'decision'")],
)
def test_a_term_that_cannot_be_is_refused(couples: Any, reduce: str, told: str) -> None:
    objective = Surrogate()
    objective.couples = couples
    with pytest.raises(ValueError, match=told):
        Term(objective, reduce=reduce)


def test_a_loss_of_nothing_is_an_error() -> None:
    class Empty(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            loss, info = super().__call__(batch, ctx)
            return loss[:, :0], info

    with pytest.raises(ValueError, match=r"part 'policy', term 'loss': Empty returned a loss of \(\d+, 0\): expected"):
        gradient(Empty(), batch_of(), None)


def test_a_loss_of_rows_by_rows_is_an_error() -> None:
    class Broadcast(Surrogate):
        """As where an advantage of [B] meets a ratio of [B, 1]: every row by every other."""

        def __call__(self, batch: Batch, ctx: Any) -> Any:
            loss, info = super().__call__(batch, ctx)
            return loss[:, :1] * torch.ones(len(batch)), info

    with pytest.raises(ValueError, match=r"Broadcast returned a loss of \((\d+), \1\): expected \(\1, \d+\)"):
        gradient(Broadcast(), batch_of(), None)


def test_a_loss_without_gradient_is_an_error() -> None:
    class Detached(Surrogate):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            loss, info = super().__call__(batch, ctx)
            return loss.detach(), info

    with pytest.raises(ValueError, match=r"part 'policy': no term has a gradient: .* live=True"):
        gradient(Detached(), batch_of(), None)


def test_an_update_without_rows_is_reported_and_moves_nothing() -> None:
    batch = batch_of()
    batch.stream = None
    batch = batch.put({"weight/rl": torch.zeros_like(batch["logp"])})
    model, recorder = Unigram(), Recorder()
    learner = GradientLearner(SimpleNamespace(), {"policy": Part(("policy",), {"loss": Term(Surrogate())}, recorder)})
    learner.bind({"policy": model})
    assert learner.update(batch, context(model)).info["policy/rows"] == 0
    assert not recorder.seen


@pytest.mark.parametrize("minibatches", [2, 7])
def test_minibatches_keep_a_coupled_group_whole_and_none_is_empty(minibatches: int) -> None:
    batch, groups = batch_of(), []

    @dataclass
    class Watch(GroupLogistic):
        def __call__(self, batch: Batch, ctx: Any) -> Any:
            groups.append(set(batch["group"].tolist()))
            return super().__call__(batch, ctx)

    model = Unigram()
    part = Part(("policy",), {"loss": Term(Watch())}, Recorder(), minibatches=minibatches)
    learner = GradientLearner(SimpleNamespace(), {"policy": part})
    learner.bind({"policy": model})
    learner.update(batch, context(model))
    there = batch["group"].unique().tolist()
    assert len(groups) == min(minibatches, len(there)) and all(groups)
    assert sorted(x for some in groups for x in some) == there  # each in one of them


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


def test_what_trust_regions_ask_is_cut_into_micro_batches_too() -> None:
    """The same numbers, and no forward above the budget but the Hessian of a term that couples rows."""
    seen: list[int] = []

    class Counted(Unigram):
        def __call__(self, batch: Batch) -> Any:
            seen.append(batch.tokens())
            return super().__call__(batch)

    torch.manual_seed(3)
    model, budget = Counted(), 20
    part = Part(("policy",), {"a": Term(Surrogate()), "b": Term(GroupLogistic(), weight=0.5)}, Recorder())
    params = list(model.module.parameters())
    whole, cut = (Loss(batch_of(), part, "policy", context(model), params, tokens) for tokens in (None, budget))
    assert len(cut.pieces) > 2
    v = torch.randn(VOCAB * VOCAB, generator=torch.Generator().manual_seed(0))
    want = whole.gradients(), whole.values(), whole.hvp("a", v), whole.hvp("b", v)
    seen.clear()
    got = cut.gradients(), cut.values(), cut.hvp("a", v)
    assert max(seen) <= budget
    for a, b in zip((*want[0].values(), *want[2:]), (*got[0].values(), got[2], cut.hvp("b", v)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert got[1] == pytest.approx(want[1], abs=1e-6)


def test_held_out_batches_are_reported_as_their_mean_over_rows() -> None:
    """The loss of 3 rows and of 9 is that of the 12 together, and an empty batch says nothing."""
    @dataclass
    class Column:
        needs: tuple[Need, ...] = ()
        couples: str = "row"

        def __call__(self, batch: Batch, ctx: Any) -> Any:
            return batch["advantage"], {"least": batch["advantage"].amin(1)}

    whole = testing.transitions([[0.0] * 12]).take(torch.arange(12))
    whole = whole.put({"advantage": torch.arange(12.0)[:, None]})
    whole.stream = "rl"
    none, few, many = (whole.take(torch.arange(a, b)) for a, b in ((0, 0), (0, 3), (3, 12)))
    model = Unigram()
    for batches in ([whole], [few, many], [none, few, many]):
        buffer = SimpleNamespace(held_out=lambda split, n, ctx, batches=batches: iter(batches))
        learner = GradientLearner(buffer, {"policy": Part(("policy",), {"mean": Term(Column())}, Recorder())})
        learner.bind({"policy": model})
        assert learner.held_out("test", 12, context(model)) == {"policy/loss/mean": 5.5, "policy/least": 5.5}
