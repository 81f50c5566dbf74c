"""Policy elimination by experiment design that counts offline data first (Leveraging Offline Data in Online
Reinforcement Learning, Wagenmaker and Pacchiano 2023, arXiv 2211.04974, after Pedel of Wagenmaker and Jamieson 2022,
arXiv 2207.02575).

Features are one-hot, so that covariances are numbers of visits. Left out: other linear features, whose exploration
needs a learner of its own, and the burn-in that the theory adds.

Axes: `H` steps; `S` states; `A` actions; `N` policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from shuhari.bounds import Bounds, Count, Length, Positive, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.methods.theory.ftpedel.branches import LEFT, Counts, World, draw_world, list_policies

ACCURACIES = (0.4, 0.2, 0.1)
RIDGE = 1e-6  # added to numbers of visits
GROWTH = 0.02  # episodes of one design step, by those before it
LEAST = 16  # episodes of a design step


@register("analysis", "ftpedel")
@dataclass
class FTPedel:
    """How many online episodes it takes to know a policy within epsilon of the best of a class, with offline data of
    one of two branches and without; simulated, nothing is trained.

    For epsilon of 0.4, 0.2 and 0.1, `episodes/<data>/<epsilon>` is the number of online episodes of FTPedel, and
    `lost/...` the suboptimality of the policy that it returns: `online` without offline data, `both` with data of the
    left branch, `full` with as many of each branch. `ratio/<epsilon>` is both by online; `none/<epsilon>`, its null,
    that of a second draw without offline data. `lost/offline` is the suboptimality of the policy with the best value
    by the left branch's data alone, `missed/offline/<epsilon>` the share of worlds where it is above epsilon, and
    `missed/both/<epsilon>` that of FTPedel.
    """

    horizon: Annotated[int, Bounds(2, 4)] = 3
    """Steps of an episode; the first chooses a branch."""
    width: Annotated[int, Bounds(1, 2)] = 2
    """States of a branch."""
    offline: Count = 1_000_000
    """Offline episodes of the left branch, of uniform actions."""
    scale: Positive = 0.5
    """Factor of H^2 log(2 N H L / delta) in beta; 1/2 is Hoeffding's for returns in [0, 1]."""
    delta: ProperShare = 0.1
    """Probability that the theory allows for a wrong answer."""
    worlds: Length = 10
    """Number of drawn worlds that numbers are means of."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng = np.random.default_rng([seed, 111])
        policies, found = list_policies(self.horizon, self.width), dict[str, list[float]]()

        def note(name: str, x: float) -> None:
            found.setdefault(name, []).append(x)

        for _ in range(self.worlds):
            world = draw_world(self.horizon, self.width, rng)
            values = world.evaluate(policies)
            left = policies[:, 0, 0] == LEFT
            none = world.no_counts()
            seen = play_all(world, policies[left], self.offline, rng)
            data = {"online": none, "again": none, "both": seen}
            data["full"] = seen + play_all(world, policies[~left], self.offline, rng)
            alone = values.max() - values[estimate_values(seen, world.start, policies).argmax()]
            note("lost/offline", alone)
            for epsilon in ACCURACIES:
                for name, some in data.items():
                    answer, episodes = find_policy(world, policies, some, epsilon, self.scale, self.delta, rng)
                    note(f"episodes/{name}/{epsilon}", episodes)
                    note(f"lost/{name}/{epsilon}", values.max() - values[answer])
                note(f"missed/offline/{epsilon}", alone > epsilon)
                note(f"missed/both/{epsilon}", found[f"lost/both/{epsilon}"][-1] > epsilon)
        out = {name: float(np.mean(xs)) for name, xs in found.items()}
        for epsilon in ACCURACIES:
            online = out[f"episodes/online/{epsilon}"]
            out[f"ratio/{epsilon}"] = out[f"episodes/both/{epsilon}"] / online
            out[f"none/{epsilon}"] = out.pop(f"episodes/again/{epsilon}") / online
            del out[f"lost/again/{epsilon}"]
        return out


def play_all(world: World, policies: Array, n: int, rng: np.random.Generator) -> Counts:
    """Return the counts of about `n` episodes, as many of each policy."""
    counts = world.no_counts()
    for policy in policies:
        counts = counts + world.play(policy, n // len(policies), rng)
    return counts


def find_policy(
    world: World, policies: Array, offline: Counts, epsilon: float, scale: float, delta: float, rng: np.random.Generator
) -> tuple[int, int]:
    """Return (the place of a policy that is within `epsilon` of the best of `policies` [N, H, S], online episodes).

    Epoch l plays until the values of all policies that are left are known within 2^-l, and drops those that are more
    than twice that below the best; the last l has 2^-l <= epsilon / 4, so that what is left is within epsilon.
    """
    horizon, last = len(world.moves), max(1, math.ceil(math.log2(4 / epsilon)))
    beta = scale * horizon**2 * math.log(2 * len(policies) * horizon * last / delta)
    left, values, total = np.arange(len(policies)), np.zeros(len(policies)), 0
    for epoch in range(1, last + 1):
        values, episodes = run_epoch(world, policies, left, offline, 4.0**-epoch / beta, rng)
        total += episodes
        left = left[values[left] >= values[left].max() - 2 * 2.0**-epoch]
        if len(left) == 1:
            break
    return int(left[values[left].argmax()]), total


def run_epoch(
    world: World, policies: Array, left: Array, offline: Counts, goal: float, rng: np.random.Generator
) -> tuple[Array, int]:
    """Return (estimated values [N], online episodes) after play that covers what the policies `left` do, step by step;
    `goal` as in `explore`. What was played for other steps or in other epochs is not used."""
    played = list[int]()

    def add(h: int, occupancy: Array) -> Counts:
        counts, n = explore(world, policies, h, occupancy[left], occupancy, offline, goal, rng)
        played.append(n)
        return counts

    return estimate_values(offline, world.start, policies, add), sum(played)


def estimate_values(
    offline: Counts, start: Array, policies: Array, add: Callable[[int, Array], Counts] | None = None
) -> Array:
    """Return the estimated values, [N], of policies [N, H, S]: the sum over steps of occupancy times mean reward.

    add: (step, occupancy [N, S, A]) -> online counts for this step, which join the offline ones. A state and action
    that was never seen pays nothing and leads nowhere, which is pessimistic.
    """
    acts = np.eye(offline.rewards.shape[2])[policies]  # [N, H, S, A]
    at = np.broadcast_to(start, (len(policies), len(start)))
    values = np.zeros(len(policies))
    for h in range(policies.shape[1]):
        occupancy = at[..., None] * acts[:, h]
        counts = offline if add is None else offline + add(h, occupancy)
        visits = counts.moves[h].sum(-1) + RIDGE
        values += (occupancy * (counts.rewards[h] / visits)).sum((1, 2))
        at = np.einsum("nsa,sat->nt", occupancy, counts.moves[h] / visits[..., None])
    return values


def explore(
    world: World, policies: Array, h: int, wanted: Array, occupancy: Array, offline: Counts, goal: float,
    rng: np.random.Generator,
) -> tuple[Counts, int]:  # fmt: skip
    """Return (counts, episodes) of play that, with the offline counts, covers step `h`: of each occupancy w in `wanted`
    [N', S, A], the sum of w^2 / visits is at most `goal`.

    Each design step plays the policy with the largest expected (w / visits)^2 at step h, w the one that is covered
    worst: the step of Frank and Wolfe for the largest of these sums. occupancy: [N, S, A], estimated, of `policies`.
    """
    counts, episodes, before = world.no_counts(), 0, offline.moves[h].sum(-1) + RIDGE
    while True:
        visits = before + counts.moves[h].sum(-1)
        sums = (wanted**2 / visits).sum((1, 2))
        if sums.max() <= goal:
            return counts, episodes
        pull = (wanted[sums.argmax()] / visits) ** 2
        best = int((occupancy * pull).sum((1, 2)).argmax())
        n = max(LEAST, int(GROWTH * episodes))
        counts, episodes = counts + world.play(policies[best], n, rng), episodes + n
