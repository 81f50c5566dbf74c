"""Nash-MP: the closed half-step and its fixed point by enumeration, and the sampled one written out."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import harness
import pytest
import torch
from nash_mp import Halves, MirrorProx, Played, Table, Versus, Wins, prox
from torch import Tensor

from shuhari.buffers.fresh import Fresh
from shuhari.data import Info
from shuhari.learners.parts import Term
from shuhari.models.tabular import Tabular
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.optimisers.adamw import AdamW
from shuhari.ports import Evaluate, Follow, Learner, Reward, Rollout, Transform
from shuhari.tasks.bandit import Bandit
from shuhari.testing import Role, check_resumed
from shuhari.transforms.advantage import Advantage

GAME: Table = ((0.5, 0.9, 0.2), (0.1, 0.5, 0.8), (0.8, 0.2, 0.5))  # round in a circle, unevenly

rollout: Rollout = Versus()
reward: Reward = Wins(GAME)
transform: Transform = Played()
follow: Follow = Halves()
learner: Learner = MirrorProx(Fresh(1), GAME)


def simplex(n: int) -> Tensor:
    """[N, 3] all distributions over three answers in steps of 1 / n, without the edges."""
    return torch.tensor([(i, j, n - i - j) for i in range(1, n) for j in range(1, n - i)], dtype=torch.float64) / n


def gap(pi: Tensor, beats: Tensor, reference: Tensor, beta: float) -> Tensor:
    """[N] what the best reply to each pi gains in the regularised game; 0 at its Nash equilibrium only. The best reply
    is a softmax, so its value is a log-sum-exp."""
    wins = pi @ beats.T
    best = beta * (reference.log() + wins / beta).logsumexp(-1)
    return best - (0.5 - beta * (pi * (pi.log() - reference.log())).sum(-1))


def exact(steps: int, beta: float, beats: Table = GAME) -> tuple[Any, list[Tensor]]:
    """A run of the closed form, and its policy after each step."""
    learner = MirrorProx(Fresh(1), beats, beta)
    models = {"policy": Tabular(), "reference": Role(init="policy")}
    run = harness.make(harness.stage(task=Bandit(3), models=models, learners={"main": learner}, steps=steps))
    found = []
    for _ in harness.train(run):
        table: Any = run.ctx.models["policy"].module
        found.append(table.logits[0].detach().double().softmax(-1))
    return run, found


def test_the_half_step_maximises_its_objective() -> None:
    g = torch.Generator().manual_seed(1)
    pi, mu, ref = torch.randn(3, 3, generator=g, dtype=torch.float64).log_softmax(-1)
    beats, beta, eta = torch.tensor(GAME, dtype=torch.float64), 0.3, 2.0

    def objective(p: Tensor) -> Tensor:
        kl = [(p * (p.log() - q)).sum(-1) for q in (ref, pi)]
        return p @ beats @ mu.exp() - beta * kl[0] - kl[1] / eta

    best = prox(pi, mu, ref, beats, beta, eta).exp()
    grid = simplex(100)
    assert bool((objective(grid) <= objective(best) + 1e-12).all())
    assert float((grid[objective(grid).argmax()] - best).abs().max()) < 0.01


def test_the_learner_finds_the_nash_policy_that_enumeration_finds() -> None:
    beats, uniform, beta = torch.tensor(GAME, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64), 0.05
    grid = simplex(60)
    nash = grid[gap(grid, beats, uniform, beta).argmin()]
    _, found = exact(80, beta)
    assert float((found[-1] - nash).abs().max()) < 1 / 60
    assert float(gap(found[-1], beats, uniform, beta)) < 1e-6
    fixed = (uniform.log() + beats @ found[-1] / beta).softmax(-1)  # π ∝ π_ref exp(P(· ≻ π) / β)
    torch.testing.assert_close(found[-1], fixed, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_each_iteration_shrinks_the_distance_by_its_rate(seed: int) -> None:
    beta, eta = 0.1, 2.0
    m = torch.rand(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    beats = 0.5 + (m - m.T) / 2
    ref = torch.full((4,), 0.25, dtype=torch.float64).log()
    path = [torch.randn(4, generator=torch.Generator().manual_seed(seed + 9), dtype=torch.float64).log_softmax(-1)]
    for _ in range(400):
        half = prox(path[-1], path[-1], ref, beats, beta, eta)
        path.append(prox(path[-1], half, ref, beats, beta, eta))
    star = path[-1]
    kl = [float((star.exp() * (star - p)).sum()) for p in path[:20]]
    assert all(after <= before / (1 + 2 * beta) + 1e-12 for before, after in pairwise(kl))


@dataclass
class Keep:
    """An optimiser that keeps the gradient and moves nothing."""

    seen: list[Tensor] = field(init=False, default_factory=list)

    def bind(self, params: Any) -> None:
        self.params = list(params)

    def step(self, evaluate: Evaluate, at: float) -> Info:
        info = evaluate.backward()
        self.seen += [p.grad.clone() for p in self.params]
        return info


def deep(optimiser: Any, *, half: int = 2, groups: int = 8, **fields: Any) -> Any:
    """A run of the sampled method: beta = 0.1, eta = 2."""
    part = harness.part(
        "policy",
        optimiser,
        win=Term(Clip(behaviour="present")),
        near=Term(Divergence("exact", to="reference"), weight=0.1),
        prox=Term(Divergence("exact", to="anchor"), weight=1 / 2.0),
    )
    models = {"policy": Tabular(), **{r: Role(init="policy") for r in ("reference", "anchor", "opponent")}}
    stage = harness.stage(
        {"policy": part}, task=Bandit(3), models=models, buffer=Fresh(groups), n=8, rollout=Versus(),
        rewards={"wins": Wins(GAME)}, weights={"wins": 1.0}, follows={"halves": Halves(half)},
        collect={"mine": Played(), "advantage": Advantage(unit="batch", scale="none")}, **fields,
    )  # fmt: skip
    return harness.make(stage)


def set_logits(run: Any, **rows: tuple[float, ...]) -> None:
    for role, row in rows.items():
        run.ctx.models[role].module.logits.data[0] = torch.tensor(row)


def test_the_sampled_half_step_is_the_gradient_written_out() -> None:
    keep = Keep()
    run = deep(keep)
    run.enter_stage()
    set_logits(run, policy=(0.5, -0.3, 0.0), anchor=(0.1, 0.4, -0.2), opponent=(1.0, 0.0, -1.0))
    drawn = run.apply(run.stage.collect, run.collect(8))
    mine = (drawn.weight("rl") != 0)[:, 0]
    assert int(mine.sum()) == 8 * 8
    assert len(drawn) == 2 * 8 * 8  # the opponent's rows are there, and weigh nothing
    assert "ungraded" not in run.ctx.ledger  # nor do they count as failures of a grader
    logits = torch.tensor((0.5, -0.3, 0.0), requires_grad=True)
    y, group = drawn["action"], drawn["group"]
    beats, wins = torch.tensor(GAME), drawn["reward"][:, 0]
    for i in mine.nonzero()[:, 0].tolist():
        theirs = y[(group == group[i]) & ~mine]
        assert float(wins[i]) == pytest.approx(float(beats[y[i]][theirs].mean()), abs=1e-6)
    logs = logits.log_softmax(-1)
    a = wins[mine] - wins[mine].mean()
    reference, anchor = torch.zeros(3).log_softmax(-1), torch.tensor((0.1, 0.4, -0.2)).log_softmax(-1)
    loss = -(a * logs[y[mine]]).mean() + 0.1 * (logs.exp() * (logs - reference)).sum()
    loss = loss + 0.5 * (logs.exp() * (logs - anchor)).sum()
    (expected,) = torch.autograd.grad(loss, logits)
    [learner] = run.stage.learners.values()
    learner.update(run.apply({}, drawn, learner.needs), run.ctx)
    torch.testing.assert_close(keep.seen[0][0], expected, atol=1e-6, rtol=1e-5)


def test_the_second_half_starts_from_the_anchor_against_the_half_step() -> None:
    run = deep(AdamW(0.1), half=2, groups=2, steps=4)
    seen = []
    for _ in harness.train(run):
        seen.append({r: harness.weights(run, r) for r in ("policy", "anchor", "opponent")})
    start = torch.zeros(3)
    assert not torch.equal(seen[0]["policy"], start)
    assert torch.equal(seen[0]["opponent"], start)
    assert torch.equal(seen[1]["policy"], start)  # back to π_k
    assert not torch.equal(seen[1]["opponent"], start)  # π_{k+1/2}
    assert torch.equal(seen[2]["opponent"], seen[1]["opponent"])
    for role in ("anchor", "opponent"):
        assert torch.equal(seen[3][role], seen[3]["policy"])  # π_{k+1}
    assert not torch.equal(seen[3]["policy"], start)


def test_a_killed_run_ends_with_the_same_bits() -> None:
    check_resumed(lambda: deep(AdamW(0.1), half=2, groups=2, steps=4), 3)
