"""Optimism over one joint confidence set of several bandits that share a representation, chosen from a finite class
(Provable General Function Class Representation Learning in Multitask Bandits and MDPs, Lu et al. 2022, arXiv
2205.15701). Left out: neural representations and MDPs.

Axes: `G` groups of tasks with one confidence set each, `M` tasks of a group, `P` representations, `k` features of one,
`A` arms, `C` multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shuhari.bounds import AtLeast0, Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register

INPUTS, FEATURES = 8, 3  # numbers of a context and arm; features of a representation
MULTIPLIERS = np.geomspace(0.05, 20, 12)  # of the bonus, while the arms of a round are sought
SWEEPS = 2  # over the tasks, to better the arms one by one


@register("analysis", "gfucb")
@dataclass
class GFUCB:
    """How much less regret a task has if several bandits learn their shared representation from one joint confidence
    set, than if each learns alone; simulated, nothing is trained.

    The reward of an arm x in task i is w_i phi(x) and noise; phi is one of a finite class. Numbers, cumulative regret
    a task: `regret/independent`, each task by optimism over a confidence set of its own; `regret/joint/<M>`, M tasks
    by GFUCB; `regret/greedy/<M>`, M tasks by the best joint fit, without optimism, and each by its own for M = 1;
    `regret/random`, arms at random. `found/...` is the share of tasks whose best fit ends at the right representation.
    """

    tasks: Length = 10
    """Number of tasks; the joint rules also run on 2 of them."""
    rounds: Length = 300
    """Rounds; in each, every task gets new arms and pulls one."""
    arms: Length = 10
    """Arms of a task in each round."""
    representations: Length = 16
    """Number of representations of the class; one of them is right."""
    noise: Positive = 1.0
    """Standard deviation of a reward's noise."""
    scale: AtLeast0 = 1.0
    """Factor of the confidence set's size, noise^2 (M k + log P); 0 is greedy."""
    ridge: Positive = 0.1
    """Weight of the squared weights in fits."""
    worlds: Length = 1
    """Number of drawn problems that numbers are means of."""

    def __post_init__(self) -> None:
        check(self)
        if self.tasks < 2:
            raise ValueError(f"gfucb: tasks {self.tasks}: expected at least 2, which share a representation")

    def __call__(self, seed: int) -> dict[str, float]:
        rng, found = np.random.default_rng([seed, 177]), dict[str, list[float]]()
        for _ in range(self.worlds):
            for name, x in self._run_rules(Problem.draw(self, rng), rng).items():
                found.setdefault(name, []).append(x)
        return {name: float(np.mean(xs)) for name, xs in found.items()}

    def _run_rules(self, problem: Problem, rng: np.random.Generator) -> dict[str, float]:
        few = problem.keep(2)
        chosen = rng.integers(self.arms, size=problem.values.shape[:2])
        out = {"regret/random": float(problem.find_regret(chosen).mean())}
        rules = {"independent": (problem, 1, self.scale), "greedy/1": (problem, 1, 0.0)}
        for one in {2: few, self.tasks: problem}.values():
            n = one.values.shape[1]
            rules |= {f"joint/{n}": (one, n, self.scale), f"greedy/{n}": (one, n, 0.0)}
        for rule, (one, size, scale) in rules.items():
            chosen, best = run(one, size, scale, self.ridge)
            out[f"regret/{rule}"] = float(one.find_regret(chosen).mean())
            out[f"found/{rule}"] = float((best == one.right).mean())
        return out


@dataclass(frozen=True)
class Problem:
    """A drawn problem: features of every arm by each representation, [rounds, M, A, P, k]; expected rewards `values`,
    [rounds, M, A]; the noise of each pull, [rounds, M], and its deviation; the place of the `right` representation."""

    features: Array
    values: Array
    noise: Array
    deviation: float
    right: int = field(default=0)

    @classmethod
    def draw(cls, of: GFUCB, rng: np.random.Generator) -> Problem:
        inputs = rng.standard_normal((of.rounds, of.tasks, of.arms, INPUTS))
        maps = rng.standard_normal((of.representations, FEATURES, INPUTS)) / math.sqrt(INPUTS)
        features = np.tanh(np.einsum("tmad,pkd->tmapk", inputs, maps))
        right = int(rng.integers(of.representations))
        weights = rng.standard_normal((of.tasks, FEATURES))
        values = np.einsum("tmak,mk->tma", features[..., right, :], weights)
        return cls(features, values, of.noise * rng.standard_normal((of.rounds, of.tasks)), of.noise, right)

    def keep(self, n: int) -> Problem:
        """Return the problem of its first `n` tasks."""
        return Problem(self.features[:, :n], self.values[:, :n], self.noise[:, :n], self.deviation, self.right)

    def find_regret(self, chosen: Array) -> Array:
        """Return each task's regret, [M], of chosen arms, [rounds, M]."""
        pulled = np.take_along_axis(self.values, chosen[..., None], -1)[..., 0]
        out: Array = (self.values.max(-1) - pulled).sum(0)
        return out


def run(problem: Problem, size: int, scale: float, ridge: float) -> tuple[Array, Array]:
    """Return (chosen arms [rounds, M], the representation that each task's fit ends at [M]) of GFUCB on groups of
    `size` tasks; a group has one confidence set. `size` 1 is independent learning, `scale` 0 is greedy."""
    rounds, m, _, p, k = problem.features.shape
    groups, chosen = m // size, np.zeros((rounds, m), int)
    gram = np.broadcast_to(ridge * np.eye(p * k), (m, p * k, p * k)).copy()  # of all features of all representations
    target = np.zeros((m, p * k))
    beta = scale * problem.deviation**2 * (size * k + math.log(p))
    for t in range(rounds):
        fits = fit(gram.reshape(groups, size, p, k, p, k), target.reshape(groups, size, p, k))
        arms = problem.features[t].reshape(groups, size, -1, p, k).transpose(0, 3, 1, 2, 4)  # [G, P, M, A, k]
        means = np.einsum("gpmak,gpmk->gpma", arms, fits["weights"])
        widths = np.einsum("gpmak,gpmkl,gpmal->gpma", arms, fits["inverse"], arms)
        chosen[t] = choose_arms(means, widths, beta - fits["residual"]).ravel()
        z = problem.features[t][np.arange(m), chosen[t]].reshape(m, p * k)
        rewards = problem.values[t][np.arange(m), chosen[t]] + problem.noise[t]
        gram += z[:, :, None] * z[:, None]
        target += rewards[:, None] * z
    fits = fit(gram.reshape(groups, size, p, k, p, k), target.reshape(groups, size, p, k))
    return chosen, np.repeat(fits["best"], size)


def fit(gram: Array, target: Array) -> Mapping[str, Array]:
    """Fit each representation to the best joint fit (Algorithm 1, for a finite class).

    gram: [G, M, P, k, P, k], with the ridge on its diagonal; target: summed rewards times features, [G, M, P, k].
    `best` [G]: the representation whose fit to the rewards has the least error, over the tasks of the group. `weights`
    [G, P, M, k]: of each representation, nearest to the best fit on the data; `residual` [G, P]: the squared distance
    that remains, 0 for the best; `inverse` [G, P, M, k, k]: of its own gram.
    """
    own = np.einsum("gmpkpl->gpmkl", gram)
    inverse = np.linalg.inv(own)
    wanted = target.transpose(0, 2, 1, 3)
    gain = np.einsum("gpmk,gpmkl,gpml->gp", wanted, inverse, wanted)  # the least error is the squared rewards less this
    best, rows = gain.argmax(-1), np.arange(len(target))
    chosen = np.einsum("gmkl,gml->gmk", inverse[rows, best], wanted[rows, best])
    cross = np.stack([gram[g, :, :, :, best[g]] for g in rows])  # [G, M, P, k, k]
    toward = np.einsum("gmpkl,gml->gpmk", cross, chosen)
    weights = np.einsum("gpmkl,gpml->gpmk", inverse, toward)
    length = np.einsum("gmk,gmk->g", chosen, toward[rows, best])
    residual = length[:, None] - np.einsum("gpmk,gpmk->gp", weights, toward)
    residual[rows, best] = 0.0
    return {"best": best, "weights": weights, "residual": residual, "inverse": inverse}


def choose_arms(means: Array, widths: Array, budget: Array) -> Array:
    """Return each task's arm, [G, M]: the largest sum of means plus sqrt(budget times the sum of widths), over
    representations whose `budget` [G, P] is not negative. means, widths: [G, P, M, A]. The tasks share the bonus, so
    the arms are sought for several multipliers of the widths, and then bettered task by task."""
    left = np.maximum(budget, 0.0)[..., None]
    slope = np.sqrt(left / np.maximum(widths.mean(-1).sum(-1), 1e-12)[..., None])[..., None, None]
    pulled = (means[:, :, None] + MULTIPLIERS[:, None, None] * slope * widths[:, :, None]).argmax(-1)  # [G, P, C, M]
    value = add_up(means, widths, pulled, left)
    arms = np.take_along_axis(pulled, value.argmax(-1)[..., None, None], 2)[:, :, 0]  # [G, P, M]
    many = np.arange(means.shape[-1])
    for m in list(range(means.shape[2])) * SWEEPS:
        tried = np.repeat(arms[:, :, None], len(many), 2)
        tried[..., m] = many
        arms[..., m] = add_up(means, widths, tried, left).argmax(-1)
    value = np.where(budget >= 0, add_up(means, widths, arms[:, :, None], left)[..., 0], -np.inf)
    out: Array = arms[np.arange(len(arms)), value.argmax(-1)]
    return out


def add_up(means: Array, widths: Array, arms: Array, budget: Array) -> Array:
    """Return the optimistic value, [G, P, C], of arms [G, P, C, M]; budget: [G, P, 1]."""
    places = arms.swapaxes(-1, -2)  # [G, P, M, C]
    mean = np.take_along_axis(means, places, -1).sum(-2)
    out: Array = mean + np.sqrt(budget * np.take_along_axis(widths, places, -1).sum(-2))
    return out
