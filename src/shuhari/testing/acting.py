"""Checks of environments: the ones of a task or a rollout, and Gymnasium's.

Left out: whether an environment is a good one (that episodes end, that rewards can be earned).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Problem, Request, Whole
from shuhari.loop.breaches import DRAWS, generator_states
from shuhari.models.spaces import MASK
from shuhari.ports.hooks import ability
from shuhari.store.codec import dumps, loads
from shuhari.tasks.checked import Checked, check_has_spaces
from shuhari.tasks.contract import explain_facts, explain_first, explain_step
from shuhari.tasks.lanes import Lanes, are_alike
from shuhari.tasks.snapshots import sample_action
from shuhari.tasks.tells import EXTRAS
from shuhari.testing.context import context
from shuhari.testing.looking import (
    ConformanceError,
    check_repeats,
    rebuild,
    require,
    require_port,
    require_same,
    to_tree,
)

Act = Callable[[Any, np.random.Generator], Any]
"""(observation, generator) -> an action as the environment takes it"""


def check_environment(
    world: Any, problem: Problem | None = None, *, act: Act | None = None, n: int = 40, seed: int = 0, ctx: Any = None
) -> None:
    """Act n times in a world, in as many episodes as it takes: in the environments that a task gives its problem (its
    first, if none is named), or in an environment of Gymnasium.

    The same start and the same actions must give the same bits; each step must have the form of its port; observations
    must lie in the declared space, and a mask must allow an action; no global generator may be drawn from. The class of
    an environment of Gymnasium is made without arguments. If a task's environments have `snapshot`, a snapshot from the
    middle of an episode must be storable, and another environment restored from it must continue as the first one. If
    no episode has a second step, the snapshot is taken before the first, which shows only that it can be stored and
    restored. If they have `step_lanes`, lanes stepped together must get the same bits as lanes stepped one by one.

    act: chooses the actions; by default at random: among the allowed ones or, if there is no action space, among the
    turns of the problem's solution and nonsense texts. ctx: the context that an environment gets (`bind`).
    """
    if isinstance(world, type) and issubclass(world, gymnasium.Env):
        world = world()
    generators = generator_states()
    if isinstance(world, gymnasium.Env):
        first, again = _lane(world, act, n, seed), _lane(world, act, n, seed)
        require_same(to_tree(first), to_tree(again), world, "did something else after it was reset with the same seed")
    else:
        require_port("task", world)
        played = problem or world.problems("train")[0]
        require(world.environment(played) is not None, world, f"gives problem {played.id!r} no environment")
        run = context() if ctx is None else ctx
        _check_episodes(world, lambda: Episodes(world.environment(played), played, world.spaces(), run, act), n)
        if (make := ability(world, "make")) is not None:
            _check_lanes(world, make, act, n)
    require(generator_states() == generators, world, DRAWS)


def check_environments(
    environments: Any, ctx: Any, requests: Sequence[Request] = (), *, act: Act | None = None, n: int = 40
) -> None:
    """Act n times in each environment that `environments` (a field of the rollout `episode`) gives these requests: by
    default one for each of the first four training problems of `ctx.task`.

    Each must pass `check_environment` as a task's would, with observations in the spaces of the task. Called for the
    same requests again, with its `state` saved half-way and restored in a new one, it must give environments in which
    the same actions give the same bits. A request for which it returns None is skipped; at least one is played.

    act: as in `check_environment`; ctx: a context with the task, and with the models and engine that it uses.
    """
    require_port("environments", environments)
    task, played = ctx.task, 0
    asked = list(requests) or [ctx.stamp_request(Request(task.problems("train")[i]), "") for i in range(4)]

    def begin(found: Any, request: Request) -> Episodes:
        return Episodes(found, request.problem, task.spaces(), ctx, act)

    def use(mine: Any, world: None, i: int) -> Any:
        request = asked[i % len(asked)]
        if (found := mine.environment(request, ctx)) is None:
            return "none"
        episodes = begin(found, request)
        return [episodes.step() for _ in range(n)]

    check_repeats(environments, use, n=max(4, len(asked)))
    for request in asked:
        if rebuild(environments).environment(request, ctx) is not None:
            played += 1
            _check_episodes(environments, lambda r=request: begin(rebuild(environments).environment(r, ctx), r), n)  # type: ignore[misc]
    require(played, environments, f"gave an environment for none of {len(asked)} requests")


def _check_episodes(who: Any, begin: Callable[[], Episodes], n: int) -> None:
    """Play n steps; again with the same actions; and once more from a snapshot in the middle of an episode."""
    whole = begin()
    found, within = list[Any](), list[int]()
    for i in range(1, n + 1):
        found.append(whole.step())
        within += [] if whole.over else [i]
    cut = min((i for i in within if i < n), key=lambda i: abs(i - n // 2), default=0)
    again = begin()
    first = [again.step() for _ in range(cut)]
    require_same(to_tree(found[:cut]), to_tree(first), who, "did something else in the same episode after "
                 "the same actions")  # fmt: skip
    if (snapshot := ability(again.env, "snapshot")) is None:
        return
    try:
        saved = loads(dumps(snapshot()))
    except TypeError as error:
        raise ConformanceError(f"{type(again.env).__name__}: its snapshot is not a payload: {error}") from error
    later = begin()
    later.env.restore(saved)
    later.rng, later.seen, later.over = again.rng, again.seen, again.over
    rest = [later.step() for _ in range(cut, n)]
    require_same(to_tree(found[cut:]), to_tree(rest), who, "went on otherwise from its snapshot")


def _check_lanes(task: Any, make: Callable[[], Any], act: Act | None, n: int) -> None:
    """Play n steps in four lanes together, every third in two of them only, then ten in each lane alone, and compare
    with the same steps in separate environments."""
    lanes, envs = (
        [make() for _ in range(4)],
        [make() for _ in range(4)],
    )
    if not are_alike(lanes):
        return
    seen = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    for i, env in enumerate(lanes):
        env.reset(seed=i)
    together, choose, rng = Lanes(lanes), act or act_at_random(envs[0].action_space), np.random.default_rng(0)
    for t in range(n + 10):
        at = [1, 3] if t % 3 == 2 else [0, 1, 2, 3]
        actions = [choose(seen[i], rng) for i in at]
        if t < n:
            *values, info = together.act_some(at, np.array(actions))
            extras = [
                {name: x[k] for name, x in info.get(EXTRAS, {}).items()}
                for k in range(len(at))
            ]
            found = [
                [*(x[k] for x in values), extras[k]]
                for k in range(len(at))
            ]
            together.put(at)
        else:
            found = [[*lanes[i].step(action)[:4], {}] for i, action in zip(at, actions, strict=True)]
        for i, action, got in zip(at, actions, found, strict=True):
            *each, told = envs[i].step(action)
            each += [told.get(EXTRAS, {}) if t < n else {}]
            mine, other = (to_tree([*map(_plain, x)]) for x in (got, each))
            require_same(mine, other, task, "steps lanes together otherwise")
            seen[i] = each[0]
            if each[2] or each[3]:
                seen[i], _ = envs[i].reset()[0], lanes[i].reset()
                together.take([i])
    Lanes(lanes)  # by now other attributes would differ that a step changes


class Episodes:
    """The same episode in an environment, again and again, with every step checked. `spaces`: (observation, action), or
    None."""

    def __init__(self, env: Any, problem: Problem, spaces: Any, ctx: Any, act: Act | None) -> None:
        self.env, self.problem, self.ctx, self.rng = env, problem, ctx, np.random.default_rng(0)
        self.space = spaces[0] if spaces is not None else None
        self.act = act or (talk(problem) if spaces is None else act_at_random(spaces[1]))
        self.took: Any = None  # the last action
        self._reset()

    def _reset(self) -> None:
        ability(self.env, "bind")(self.ctx, ("check", 0))
        first = self._answer(self.env.reset(self.problem))
        wrong = explain_first(first, text=self.space is None)
        require(not wrong, self.env, f"its reset {wrong}")
        self.seen = self._read_observation(first)
        self.over = False

    def step(self) -> Any:
        if self.over:
            self._reset()
        self.took = self.act(self.seen, self.rng)
        answer = self._answer(self.env.step(self.took))
        wrong = explain_step(answer, text=self.space is None)
        require(not wrong, self.env, f"its step {wrong}")
        (seen, rewards, status), facts = answer, ability(self.env, "facts")
        self.seen = self._read_observation(seen)
        wrong = explain_facts(facts)
        require(not wrong, self.env, wrong)
        self.over = status is not None
        return [_plain(self.seen), dict(rewards), status.value if status is not None else "", _plain(dict(facts))]

    def _answer(self, found: Any) -> Any:
        async def wait() -> Any:
            return await found

        return self.ctx.wait(wait()) if inspect.isawaitable(found) else found

    def _read_observation(self, seen: Any) -> Any:
        if self.space is not None:
            _require_in(self.env, self.space, seen)
        return seen.context if isinstance(seen, Whole) else seen


def _lane(world: Any, act: Act | None, n: int, seed: int) -> list[Any]:
    """Return what an environment of Gymnasium gives from a seed on; each step is checked as in a run (`Checked`), and
    against the declared space."""
    called = type(world).__name__
    try:
        check_has_spaces(world, called)
        env, choose = Checked(world, called), act or act_at_random(world.action_space)
        rng, out = np.random.default_rng(seed), list[Any]()
        seen, info = env.reset(seed=seed)
        for _ in range(n):
            _require_in(world, env.observation_space, seen)
            seen, reward, ended, cut, info = env.step(choose({MASK: info[MASK]} if MASK in info else seen, rng))
            for name, x in (("terminated", ended), ("truncated", cut)):
                require(isinstance(x, bool | np.bool_), world, f"its step gave {name} = {x!r}: expected True or False")
            require(isinstance(info, Mapping), world, f"its step gave the info {info!r}: expected a mapping")
            out.append([_plain(seen), np.asarray(reward, np.float64), bool(ended), bool(cut)])
            if ended or cut:
                seen, info = env.reset()
    except ValueError as error:
        if str(error).startswith(f"{called}: "):
            raise ConformanceError(str(error)) from error
        raise
    return out


def _require_in(env: Any, space: Any, seen: Any) -> None:
    """Raise ConformanceError unless an observation lies in the space; its type may be wider than declared."""
    if isinstance(space, spaces.Dict):
        have = sorted(seen) if isinstance(seen, Mapping) else type(seen).__name__
        require(have == sorted(space.spaces), env, f"shows {have}: expected {sorted(space.spaces)}")
        for name, part in space.spaces.items():
            _require_in(env, part, seen[name])
        if MASK in space.spaces:
            require(np.asarray(seen[MASK]).any(), env, "shows an action_mask that allows nothing")
        return
    x = np.asarray(seen)
    shape = tuple(space.shape or ())
    require(x.shape == shape, env, f"shows an array of shape {x.shape}: expected {shape}, as {space}")
    require(space.contains(x.astype(space.dtype)), env, f"shows {x}: it is not in {space}")


def act_at_random(space: Any) -> Act:
    """Return a policy that is uniform over a space, or over the actions that a mask allows."""

    def act(seen: Any, rng: np.random.Generator) -> Any:
        space.seed(int(rng.integers(2**31)))
        return sample_action(space, seen)

    return act


def talk(problem: Problem) -> Act:
    """Return a policy that answers with one of the turns of the solution, the answer, or nonsense."""
    turns = problem.solution if isinstance(problem.solution, tuple) else (problem.solution,)
    lines = [x for x in (*turns, problem.answer, "", "?") if isinstance(x, str)]
    return lambda seen, rng: lines[int(rng.integers(len(lines)))]


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    return x if isinstance(x, str) else np.array(x)
