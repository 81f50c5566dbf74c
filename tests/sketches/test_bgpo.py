"""BGPO: the bound by hand, its gradient a draw at a time, and a step of training on a masked language model."""

from __future__ import annotations

from math import exp
from typing import Any

import harness
import pytest
import torch
from bgpo import Boundary, MaskedLM, PerDraw
from toys import Echo

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.data import Sampling
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.parts import Term
from shuhari.models.sampling import honour
from shuhari.needs import Need
from shuhari.ports import Objective, Policy, Transform
from shuhari.testing import check_resumed, context
from shuhari.transforms.advantage import Advantage

policy: Policy = MaskedLM()
objective: Objective = Boundary()
transform: Transform = PerDraw()
LIVE = Need(("policy",), "log_prob", live=True)


def row(d: tuple[float, ...], advantage: float, size: int = 4) -> Batch:
    """One sample with draws whose bounds have moved by size · d."""
    k = len(d)
    return Batch({
        "mask": torch.ones(1, k, dtype=torch.bool), "logp": torch.full((1, k), -3.0),
        LIVE.key: -3.0 + size * torch.tensor([d]), "advantage": torch.full((1, k), advantage),
        "draws": torch.ones(1, k, size, dtype=torch.long),
    })  # fmt: skip


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 0.9), (-1.0, -0.945861)])
def test_the_objective_bounds_the_exponential_of_the_mean_from_below(advantage: float, expected: float) -> None:
    d = (0.2, -0.4)
    loss, _ = Boundary()(row(d, advantage), context())
    assert -float(loss.mean()) == pytest.approx(expected, abs=1e-6)
    assert -float(loss.mean()) <= advantage * exp(sum(d) / 2)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_where_nothing_has_moved_value_and_gradient_are_those_of_the_target(advantage: float) -> None:
    batch = row((0.0, 0.0, 0.0), advantage)
    live = batch[LIVE].clone().requires_grad_()
    loss, _ = Boundary()(batch.put({LIVE.key: live}), context())
    target = -advantage * ((live - batch["logp"]) / 4).mean().exp()
    assert float(loss.detach().mean()) == pytest.approx(float(target.detach()), abs=1e-6)
    mine, theirs = (torch.autograd.grad(x, live)[0] for x in (loss.mean(), target))
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def bgpo(**fields: Any) -> Any:
    part = harness.part(bound=Term(Boundary(), reduce="episode"), **fields.pop("part", {}))
    fields = {"n": 4, **fields}
    run = harness.make(harness.stage(
        {"policy": part}, task=Echo(length=2), models={"policy": MaskedLM(length=2, draws=6)}, buffer=Fresh(3),
        collect={"advantage": Advantage()}, transforms={"draws": PerDraw()}, **fields,
    ))  # fmt: skip
    run.enter_stage()
    return run


def gradient(run: Any, batch: Batch, *, per_draw: bool, tokens: int | None, reduce: str) -> tuple[torch.Tensor, int]:
    """The gradient of one update over `batch`, and the most draws that one forward saw."""
    seen: list[torch.Tensor] = []
    most = [0]

    class Keep:
        def bind(self, params: Any) -> None:
            self.params = list(params)

        def step(self, evaluate: Any, at: float) -> Any:
            info = evaluate.backward()
            seen.append(torch.cat([p.grad.flatten() for p in self.params]))
            return info

    net = run.ctx.models["policy"].module
    handle = net.register_forward_pre_hook(lambda _, ids: most.append(len(ids[0])))
    part = harness.part("policy", Keep(), bound=Term(Boundary(), reduce=reduce))
    transforms: dict[str, Transform] = {"draws": PerDraw()} if per_draw else {}
    learner = GradientLearner(Fresh(1), {"policy": part}, transforms, tokens)
    learner.bind(run.ctx.models)
    batch = run.apply(learner.transforms, batch, learner.needs)
    most.clear()
    learner.update(batch, run.ctx)
    handle.remove()
    return seen[0], max(most)


def test_a_draw_at_a_time_gives_the_same_gradient() -> None:
    run = bgpo()
    batch = run.apply(run.stage.collect, run.collect(3))
    batch.stream = "rl"
    with torch.no_grad():  # off the behaviour, so that both branches of the bound matter
        for p in run.ctx.models["policy"].module.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    a = torch.linspace(-1, 1, len(batch))[:, None] * batch["mask"]  # whatever was earned
    batch = batch.put({"advantage": a})
    whole, all_draws = gradient(run, batch, per_draw=False, tokens=None, reduce="row")
    single, one = gradient(run, batch, per_draw=True, tokens=1, reduce="episode")
    assert whole.norm() > 1e-3
    assert (all_draws, one) == (len(batch) * 6, 1)
    torch.testing.assert_close(single, whole, atol=1e-6, rtol=1e-5)


def test_the_bound_is_scored_again_on_the_draws_that_were_stored() -> None:
    run = bgpo()
    batch = run.collect(3)
    assert batch.width == 6
    assert batch["draws"].shape == (12, 6, 2)
    torch.testing.assert_close(run.ctx.score(batch, [Need(("policy",), "log_prob")])["policy/log_prob"], batch["logp"])


def test_the_bound_lies_below_the_exact_probability() -> None:
    """The mean over all masks, weighed by their law, is at most log p by unmasking in a random order; for two tokens
    that is log of the mean over both orders, and by Jensen the bound is the mean of the logs."""
    run = bgpo()
    model, batch = run.ctx.models["policy"], run.collect(1)
    masks = torch.tensor([[[1, 1], [1, 0], [0, 1]]]).expand(len(batch), -1, -1)
    whole = batch.put({"draws": masks, "mask": torch.ones(len(batch), 3, dtype=torch.bool)})
    with torch.no_grad():
        both, first, second = model(whole).log_prob().unbind(1)
    bound = 0.5 * both + 0.25 * (first + second)  # l = 2 has one mask, l = 1 has two
    y = torch.tensor([s.action.tolist() for s in batch.steps])
    contexts = [s.context for s in batch.steps]
    with torch.no_grad():
        logs = model._logits(contexts, torch.arange(len(y)), torch.full_like(y, model.blank)).log_softmax(-1)
    alone = logs.gather(-1, y[..., None]).squeeze(-1)  # [B, 2] either token from nothing; the other comes second
    exact = torch.stack([alone[:, 0] + second / 2, alone[:, 1] + first / 2]).logsumexp(0) - torch.tensor(2.0).log()
    assert bool((bound <= exact + 1e-5).all())


def test_a_step_of_training() -> None:
    run = bgpo(steps=2, n=32)
    before = harness.weights(run)
    first, second = harness.train(run)
    assert first["policy/log_ratio"] == pytest.approx(0, abs=1e-5)
    assert first["policy/rows"] == 6 * 3 * 32
    assert not torch.equal(before, harness.weights(run))
    assert second["step"] == 2


def test_settings_that_it_cannot_honour_are_refused() -> None:
    with pytest.raises(ValueError, match="top_p"):
        honour(Sampling(top_p=0.5), (), "masked")


def test_a_killed_run_ends_with_the_same_bits() -> None:
    check_resumed(lambda: bgpo(steps=3), 1)
