"""Learning the best policy of a class from episodes, resets or a simulator, whether or not the class has a good one
(Agnostic Reinforcement Learning: Foundations and Algorithms, Li 2025, arXiv 2506.01884; POPLER: Jia et al. 2023, arXiv
2310.06113).

The class is that of singletons: the core policy, which takes action 0 everywhere, and for each state the policy that
deviates in it alone. Left out: POPLER for larger sunflowers, and classes with several core policies.

Axes: `H` steps or layers; `S` states of a layer; `E` episodes; `N` policies: the core, then each state's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.methods.theory.agnostic_rl.layered import AWAY, CORE, Layered, draw, draw_world

HORIZONS = (4, 6, 8, 10)
SMALLEST, LARGEST = 4, 24  # logarithms to base 2 of numbers of episodes
WIDTH = 3  # states of a layer among which the core moves
CAPACITY = 3  # horizon of the class whose spanning capacity is counted
RESETS = 256  # episodes of PSDP for each layer
Estimate = Callable[[Layered, int, np.random.Generator], Array]


@register("analysis", "agnostic_rl")
@dataclass
class AgnosticRL:
    """How many episodes it takes to find the best policy of a class, by uniform play and by what the class shares;
    simulated, nothing is trained.

    The class: policies that deviate from one core policy in one state. For horizons H of 4, 6, 8 and 10, `uniform/<H>`,
    `popler/<H>` and `tree/<H>` are the episodes (of the tree: transitions divided by H) at which the mean
    suboptimality within the class is `epsilon`: by importance sampling of uniform play, by POPLER's structure, which
    plays the core and deviates once, and by trajectory trees of a simulator. `ratio/<H>` is uniform by popler, `slope`
    that of its logarithm to base 2 on H: 1 would be 2^H. `capacity` is the spanning capacity of the class of horizon 3,
    by enumeration; the theory has 4.

    `psdp/all` and `psdp/one` are the suboptimality, to the best of all policies, of policy search by dynamic
    programming with resets to all states of each layer, and to the first alone.
    """

    epsilon: Positive = 0.05
    """Suboptimality at which the policy counts as found."""
    worlds: Length = 4
    """Number of drawn worlds."""
    draws: Length = 5
    """Data sets of each world and number of episodes."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng, out, ratios = np.random.default_rng([seed, 25]), dict[str, float](), list[float]()
        for horizon in HORIZONS:
            worlds = [draw_world(horizon, WIDTH, rng) for _ in range(self.worlds)]
            found = {rule: self._count_episodes(worlds, estimate, rng) for rule, estimate in RULES.items()}
            found["tree"] *= count_tree(horizon) / horizon
            out |= {f"{rule}/{horizon}": n for rule, n in found.items()}
            ratios.append(found["uniform"] / found["popler"])
            out[f"ratio/{horizon}"] = ratios[-1]
        out["slope"] = float(np.polyfit(HORIZONS, np.log2(ratios), 1)[0])
        out["capacity"] = float(find_capacity(list_singletons(CAPACITY, CAPACITY), 2))
        for name, lost in self._search_by_resets(rng).items():
            out[f"psdp/{name}"] = lost
        return out

    def _count_episodes(self, worlds: list[Layered], estimate: Estimate, rng: np.random.Generator) -> float:
        """Return the number of episodes at which the mean suboptimality falls to epsilon, by doubling; between two
        numbers, by a line through the logarithms."""
        before = math.nan
        for power in range(SMALLEST, LARGEST + 1):
            lost = list[float]()
            for world in worlds:
                horizon = len(world.moves)
                values = world.evaluate(list_singletons(horizon, world.start.size))
                for _ in range(self.draws):
                    lost.append(float(values.max() - values[estimate(world, 2**power, rng).argmax()]))
            mean = max(float(np.mean(lost)), 1e-9)
            if mean <= self.epsilon:
                if math.isnan(before):
                    return float(2**power)
                step = (math.log(before) - math.log(self.epsilon)) / (math.log(before) - math.log(mean))
                return float(2 ** (power - 1 + step))
            before = mean
        return float(2**LARGEST)

    def _search_by_resets(self, rng: np.random.Generator) -> Mapping[str, float]:
        lost: dict[str, list[float]] = {"all": [], "one": []}
        for _ in range(self.worlds):
            world = draw_world(HORIZONS[1], WIDTH, rng)
            size = world.start.size
            for name, resets in (("all", np.full(size, 1 / size)), ("one", np.eye(size)[0])):
                policy = search_by_resets(world, resets, RESETS, rng)
                lost[name].append(world.solve() - float(world.evaluate(policy[None])[0]))
        return {name: float(np.mean(xs)) for name, xs in lost.items()}


# ------------------------------------------------------------------------------------------------ the class


def list_singletons(horizon: int, states: int) -> Array:
    """Return the class, [1 + H S, H, S]: the core, then the policy that deviates in each state, layer by layer."""
    out = np.full((1 + horizon * states, horizon, states), CORE)
    for i, (h, s) in enumerate(product(range(horizon), range(states))):
        out[1 + i, h, s] = AWAY
    return out


def find_capacity(policies: Array, actions: int) -> int:
    """Return the spanning capacity of a class of policies [N, H, S]: the largest number of pairs of state and action in
    a layer that its policies reach in a deterministic process, over all such processes. By enumeration, for few states.

    The policies at one state part by their actions; a process sends each part to a state of the next layer.
    """
    _, horizon, states = policies.shape

    def visit(parts: tuple[frozenset[int], ...], h: int) -> int:
        """Parts that enter layer h; returns the most pairs in this or a later layer."""
        best = 0
        for places in product(range(states), repeat=len(parts)):
            after = list[frozenset[int]]()
            for s in set(places):
                here = frozenset().union(*(part for part, at in zip(parts, places, strict=True) if at == s))
                for a in range(actions):
                    after.append(frozenset(i for i in here if policies[i, h, s] == a))
            after = [part for part in after if part]
            best = max(best, len(after), visit(tuple(after), h + 1) if h + 1 < horizon else 0)
        return best

    return visit((frozenset(range(len(policies))),), 0)


# ------------------------------------------------------------------------------------------------ estimates of values


def play_once_away(world: Layered, counts: Array, rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Return (states [E, H], actions [E, H], returns [E], layer [E]) of counts[0] episodes of the core, whose layer is
    -1, and of counts[1 + h] that deviate in layer h alone."""
    horizon = len(world.moves)
    layer = np.repeat(np.arange(-1, horizon), counts)
    actions = np.where(layer[:, None] == np.arange(horizon), AWAY, CORE)
    states, returns = world.play(draw_first(world, len(layer), rng), actions, rng)
    return states, actions, returns, layer


def draw_first(world: Layered, n: int, rng: np.random.Generator) -> Array:
    """Return `n` states of the first layer."""
    return draw(np.broadcast_to(world.start, (n, world.start.size)), rng)


def weigh(states: Array, actions: Array, returns: Array, chance: float, policies: Array, n: int) -> Array:
    """Return each policy's value, [N], by importance sampling: the mean, over `n` episodes, of the return divided by
    the chance of the actions, if the policy would have taken them all, and 0 if not. states, actions: [E, H]; returns:
    [E]; E may be below `n` if the others agree with no policy."""
    layers = np.arange(states.shape[1])
    agree = [(policy[layers, states] == actions).all(-1) for policy in policies]
    out: Array = np.stack(agree) @ returns / (chance * n)
    return out


def estimate_uniform(world: Layered, n: int, rng: np.random.Generator) -> Array:
    """Importance sampling of `n` episodes of uniform actions. Those with two deviations or more agree with no policy of
    the class, so that they are counted and not played."""
    horizon, each = len(world.moves), 2.0 ** -len(world.moves)
    counts = rng.multinomial(n, [each] * (horizon + 1) + [1 - (horizon + 1) * each])[:-1]
    states, actions, returns, _ = play_once_away(world, counts, rng)
    return weigh(states, actions, returns, each, list_singletons(horizon, world.start.size), n)


def estimate_popler(world: Layered, n: int, rng: np.random.Generator) -> Array:
    """POPLER's structure for singletons, of `n` episodes: some of the core, as many that deviate in each layer. A
    policy's value is that of the chain from the start to its state and to the end: the core's return where the core
    misses the state, and the return after the deviation where it does not."""
    horizon, size = len(world.moves), world.start.size
    counts = np.full(horizon + 1, n // (horizon + 1))
    counts[0] += n - counts.sum()
    states, _, returns, layer = play_once_away(world, counts, rng)
    core = layer < 0
    out = np.zeros((horizon, size))
    for h in range(horizon):
        away, before = layer == h, core | (layer >= h)  # those before deviate later, if at all
        reached = np.bincount(states[before, h], minlength=size) / before.sum()
        missed = core.sum() - np.bincount(states[core, h], minlength=size)
        rest = returns[core].sum() - np.bincount(states[core, h], returns[core], size)
        visits, after = np.bincount(states[away, h], minlength=size), np.bincount(states[away, h], returns[away], size)
        out[h] = reached * after / np.maximum(visits, 1) + (1 - reached) * rest / np.maximum(missed, 1)
    return np.concatenate([[returns[core].mean()], out.ravel()])


def estimate_tree(world: Layered, n: int, rng: np.random.Generator) -> Array:
    """Means of `n` trajectory trees, which need a simulator that can be set to a state: one path of the core, and from
    each of its states a path that deviates there. All policies are evaluated on each tree."""
    horizon, size = len(world.moves), world.start.size
    states, returns = world.play(draw_first(world, n, rng), np.full((n, horizon), CORE), rng)
    out = np.full((horizon, size), returns.sum())
    for h in range(horizon):
        actions = np.full((n, horizon - h), CORE)
        actions[:, 0] = AWAY
        away = world.play(states[:, h], actions, rng, h)[1]
        out[h] += np.bincount(states[:, h], away - returns, size)
    return np.concatenate([[returns.sum()], out.ravel()]) / n


def count_tree(horizon: int) -> int:
    """Return the number of transitions of a trajectory tree of singletons: the core's, and H - h from layer h on."""
    return horizon + horizon * (horizon + 1) // 2


RULES: Mapping[str, Estimate] = {"uniform": estimate_uniform, "popler": estimate_popler, "tree": estimate_tree}


# ------------------------------------------------------------------------------------------------ resets


def search_by_resets(world: Layered, resets: Array, n: int, rng: np.random.Generator) -> Array:
    """Return the policy, [H, S], of policy search by dynamic programming: from the last layer to the first, in each
    state the action with the best mean return of `n` episodes, which begin in a state of the layer by chances `resets`
    [S], take a random action and follow the later layers' policy. States never seen keep the core's action."""
    horizon, size = len(world.moves), world.start.size
    policy = np.full((horizon, size), CORE)
    for h in reversed(range(horizon)):
        first, action = draw(np.broadcast_to(resets, (n, size)), rng), rng.integers(2, size=n)
        total = (rng.random(n) < world.means[h, first, action]).astype(float)
        at = draw(world.moves[h, first, action], rng)
        for later in range(h + 1, horizon):
            a = policy[later, at]
            total += rng.random(n) < world.means[later, at, a]
            at = draw(world.moves[later, at, a], rng)
        pair = first * 2 + action
        visits = np.bincount(pair, minlength=2 * size).reshape(size, 2)
        mean = np.bincount(pair, total, 2 * size).reshape(size, 2) / np.maximum(visits, 1)
        policy[h] = np.where((visits > 0).all(-1), mean.argmax(-1), CORE)
    return policy
