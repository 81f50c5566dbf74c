"""The recurrent model against PyTorch's own recurrences run over whole episodes by hand, within and across fragments.

Axes: `T` rows of an episode, `S` numbers of a memory, `N` lanes.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import Request, Sampling
from shuhari.desk.api import LoadedPolicy
from shuhari.engines.local import Local
from shuhari.kernel.join import cat
from shuhari.kernel.noise import CounterNoise
from shuhari.kernel.pack import pack
from shuhari.kernel.recall import find_stretches, part_memory, with_memory
from shuhari.learners.gradient import GradientLearner, _minibatches
from shuhari.learners.parts import Part, Term
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.recurrent import RecurrentPolicy
from shuhari.needs import Need, evaluate
from shuhari.objectives.clip import Clip
from shuhari.objectives.value import Value
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym
from shuhari.testing import ModelCase, check_model

POLE = {"path": "CartPole-v1", "kwargs": {"max_episode_steps": 13}, "keep": (0, 2)}
SWING = {"path": "Pendulum-v1", "kwargs": {"max_episode_steps": 9}, "keep": (0, 1)}
LOGP, VALUE = Need(("policy",), "log_prob"), Need(("critic",), "value")


def built(task: Any, seed: int = 0, shake: float = 0.3, **fields: Any) -> RecurrentPolicy:
    model = RecurrentPolicy(**{"size": 5, "hidden": (4,), **fields})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.build(task)
        with torch.no_grad():
            for p in model.module.parameters():
                p += shake * torch.randn(p.shape)
    return model


def roles(model: Any) -> dict[str, Any]:
    return {"policy": model, "critic": model}


def collected(model: Any, task: Any, *sizes: int, lanes: int = 3, **fields: Any) -> list[Batch]:
    rollout = VectorRollout(lanes=lanes, **fields)
    rollout.open(task, 7)
    ctx = testing.context(models=roles(model))
    return [rollout.collect(n, ctx) for n in sizes]


def episodes(batches: list[Batch]) -> list[tuple[list[tuple[int, int]], bool]]:
    """([(batch, row) of an episode's rows in order, closing rows of its end included], whether it began here) of each
    episode; the closing row of a fragment that the episode goes on from is left out."""
    found: dict[int, list[tuple[int, int]]] = {}
    for b, batch in enumerate(batches):
        for row in range(len(batch)):
            found.setdefault(int(batch["episode"][row]), []).append((b, row))
    out = []
    for rows in found.values():
        ends = [k for k, (b, row) in enumerate(rows) if not bool(batches[b].decides[row])]
        out.append([x for k, x in enumerate(rows) if k not in ends[:-1] or k == len(rows) - 1])
    return out


def cell(model: Any, whose: str) -> Any:
    """A recurrence of PyTorch, with the weights of a core."""
    mine = getattr(model.module, "critic" if whose == "value" and model.critic == "own" else "actor").cell
    kind = torch.nn.LSTM if model.core == "lstm" else torch.nn.GRU
    made = kind(mine.input_size, mine.hidden_size, batch_first=True)
    made.load_state_dict(mine.state_dict())
    return made


def layers(x: Tensor, mlp: Any) -> Tensor:
    for i, layer in enumerate(mlp.layers):
        x = layer(x if i == 0 else x.tanh())
    return x


def by_hand(model: Any, seen: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probabilities, values) [T] of an episode from its first row on, observations [T, D], by `cell`."""
    at = {w: cell(model, w)(seen[None])[0][0] for w in ("policy", "value")}
    out, value = (layers(at[w], model.module.heads[w]) for w in ("policy", "value"))
    if model._choices is not None:
        law: Any = torch.distributions.Categorical(logits=out)
        return law.log_prob(action), value[:, 0]
    law = torch.distributions.Normal(out, model.module.log_std.exp())
    return law.log_prob(action.view_as(out)).sum(1), value[:, 0]


CASES = [
    (POLE, {"core": "lstm"}),
    (POLE, {"core": "gru", "critic": "shared"}),
    (SWING, {"core": "lstm", "critic": "shared"}),
    (SWING, {"core": "gru"}),
]


@pytest.mark.parametrize(("world", "fields"), CASES)
def test_a_batch_of_several_fragments_is_as_whole_episodes_unrolled_by_torch(world: Any, fields: Any) -> None:
    task = Gym(**world)
    model = built(task, **fields)
    parts = collected(model, task, 20, 7, 60)
    scored = [evaluate(p, [LOGP, VALUE], roles(model)) for p in parts]
    ends = 0
    for rows in episodes(parts):
        seen = torch.stack([parts[b]["context"][i] for b, i in rows])
        action = torch.stack([parts[b]["action"][i] for b, i in rows])
        logp, value = by_hand(model, seen, action)
        decides = torch.tensor([bool(parts[b].decides[i]) for b, i in rows])
        mine = torch.stack([scored[b][LOGP.key][i, 0] for b, i in rows])
        torch.testing.assert_close(mine[decides], logp[decides], atol=1e-5, rtol=0)
        behaviour = torch.stack([parts[b]["logp"][i, 0] for b, i in rows])
        torch.testing.assert_close(behaviour[decides], logp[decides], atol=1e-5, rtol=0)
        values = torch.stack([scored[b][VALUE.key][i, 0] for b, i in rows])
        torch.testing.assert_close(values, value, atol=1e-5, rtol=0)  # of the closing rows too
        ends += int(~decides[-1] and len({b for b, _ in rows}) > 1)
    assert len(episodes(parts)) > 6 and ends  # with episodes that begin within, and that go on across fragments


@pytest.mark.parametrize("fields", [{"core": "lstm"}, {"core": "gru", "critic": "shared"}])
def test_the_stored_memory_is_that_of_the_rows_before(fields: Any) -> None:
    task = Gym(**POLE)
    model = built(task, **fields)
    parts = collected(model, task, 20, 41)
    for rows in episodes(parts):
        stored = torch.stack([parts[b]["memory"][i, 0] for b, i in rows])
        assert bool((stored[0] == 0).all())
        state: Any = None
        whose = [cell(model, w) for w in (("policy", "value") if model.critic == "own" else ("policy",))]
        state = [None] * len(whose)
        for t, (b, i) in enumerate(rows[:-1]):
            now = []
            for k, core in enumerate(whose):
                _, state[k] = core(parts[b]["context"][i][None, None], state[k])
                now += [x.flatten() for x in (state[k] if model.core == "lstm" else (state[k],))]
            torch.testing.assert_close(stored[t + 1], torch.cat(now), atol=1e-6, rtol=0)


def test_the_gradient_is_that_of_the_unrolled_equations_of_an_lstm() -> None:
    """Gates in the order of PyTorch's documentation: i, f, g, o."""
    task = Gym(**POLE)
    model = built(task)
    (batch,) = collected(model, task, 60)
    batch = batch.take(batch.decides)
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, len(batch), generator=g)
    live = [Need(("policy",), "log_prob", live=True), Need(("critic",), "value", live=True)]
    found = evaluate(batch, live, roles(model), trains=("policy",))
    params = [*model.module.parameters()]
    mine = torch.autograd.grad((a * found[live[0].key][:, 0] + b * found[live[1].key][:, 0]).sum(), params)

    total = torch.zeros(())
    for e in batch["episode"].unique():
        state = {w: (torch.zeros(5), torch.zeros(5)) for w in ("policy", "value")}
        for i in (batch["episode"] == e).nonzero().squeeze(1).tolist():
            out = {}
            for w in state:
                core = (model.module.actor if w == "policy" else model.module.critic).cell
                h, c = state[w]
                z = core.weight_ih_l0 @ batch["context"][i] + core.bias_ih_l0 + core.weight_hh_l0 @ h + core.bias_hh_l0
                i_, f_, g_, o_ = z.chunk(4)
                c = f_.sigmoid() * c + i_.sigmoid() * g_.tanh()
                h = o_.sigmoid() * c.tanh()
                state[w] = h, c
                out[w] = layers(h, model.module.heads[w])
            logp = out["policy"].log_softmax(0)[int(batch["action"][i])]
            total = total + a[i] * logp + b[i] * out["value"][0]
    for x, y in zip(mine, torch.autograd.grad(total, params), strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
        assert float(x.abs().max()) > 0


def test_gradients_run_back_over_a_stretch_and_no_further() -> None:
    """The derivative of a row's log-probability with respect to the observations before it."""
    task = Gym(**SWING)
    (batch,) = collected(built(task), task, 9, lanes=1)
    assert len(batch) == 10
    for stretch, reach in ((None, 9), (4, 4), (1, 1)):
        model = built(task, stretch=stretch)
        seen = batch["context"].clone().requires_grad_()
        moved = batch.put({"context": seen})
        live = Need(("policy",), "log_prob", live=True)
        logp = evaluate(moved, [live], roles(model), trains=("policy",))[live.key]
        torch.testing.assert_close(logp[:9], batch["logp"][:9], atol=1e-5, rtol=0)  # the states are those that were
        for t in range(9):
            (slope,) = torch.autograd.grad(logp[t, 0], seen, retain_graph=True)
            touched = slope.abs().sum(1).nonzero().squeeze(1).tolist()
            assert touched == list(range(t - t % reach, t + 1))


def test_another_weight_is_scored_from_the_first_rows_stored_state() -> None:
    """After an update a minibatch begins at states as they were collected, as in sb3-contrib, and goes on with new
    ones: by hand, a row at a time."""
    task = Gym(**SWING)
    old, new = built(task), built(task, seed=1)
    first, batch = collected(old, task, 5, 12, lanes=1)
    del first
    assert bool((batch["memory"][0] != 0).any())
    scored = evaluate(batch, [VALUE], roles(new))[VALUE.key][:, 0]
    core, end = cell(new, "value"), int((~batch.decides).nonzero()[0])
    h, c = batch["memory"][0, 0, 10:].split(5)
    state = h.view(1, 1, 5).contiguous(), c.view(1, 1, 5).contiguous()
    for t in range(end + 1):
        out, state = core(batch["context"][t].view(1, 1, -1), state)
        assert float(scored[t]) == pytest.approx(layers(out, new.module.heads["value"]).item(), abs=1e-5)
    assert float(scored[end + 1]) == pytest.approx(float(layers(
        core(batch["context"][end + 1].view(1, 1, -1))[0], new.module.heads["value"])), abs=1e-5)  # fmt: skip


# ---------------------------------------------------------------- stretches


def chains(parent: list[int], longest: int | None) -> list[list[int]]:
    """The same stretches, one row at a time."""
    follows: dict[int, int] = {}
    for row, up in enumerate(parent):
        if up >= 0 and up not in follows:
            follows[up] = row
    out = []
    for row in range(len(parent)):
        if parent[row] >= 0 and follows[parent[row]] == row:
            continue
        line = [row]
        while line[-1] in follows:
            line.append(follows[line[-1]])
        k = longest or len(line)
        out += [line[i : i + k] for i in range(0, len(line), k)]
    return out


@given(st.lists(st.integers(-1, 30), min_size=1, max_size=30), st.sampled_from([None, 1, 2, 3]), st.randoms())
@settings(max_examples=60, deadline=None)
def test_stretches_are_the_chains_of_the_view(given_parents: list[int], longest: int | None, order: Any) -> None:
    parent = [min(p, row - 1) for row, p in enumerate(given_parents)]
    shuffled = [*range(len(parent))]
    order.shuffle(shuffled)  # rows in any order: those of `parent` stand at `shuffled`
    place = torch.tensor(shuffled)
    up = torch.tensor([-1 if p < 0 else shuffled[p] for p in parent])
    column = torch.empty(len(parent), dtype=torch.long)
    column[place] = up
    batch = Batch({"mask": torch.ones(len(parent), 1, dtype=torch.bool), "parent": column})
    got = find_stretches(batch, longest)
    lines: list[list[int]] = [[] for _ in got.firsts]
    at = 0
    for n in got.sizes.tolist():
        for k in range(n):
            lines[k].append(int(got.order[at + k]))
        at += n
    assert at == len(parent) and [x[0] for x in lines] == got.firsts.tolist()
    assert sorted(map(len, lines), reverse=True) == [*map(len, lines)]
    expected = chains(column.tolist(), longest)
    assert sorted(lines) == sorted(expected)
    torch.testing.assert_close(got.restore(got.order.float()), torch.arange(len(parent)).float())


def test_a_view_begins_anew_where_rows_are_left_out_and_takes_a_repeated_row_alone() -> None:
    whole = Batch({"mask": torch.ones(6, 1, dtype=torch.bool), "parent": torch.arange(-1, 5)})
    got = find_stretches(whole.take(torch.tensor([0, 1, 3, 4, 5])))
    assert got.firsts.tolist() == [2, 0] and got.sizes.tolist() == [2, 2, 1]
    twice = find_stretches(whole.take(torch.tensor([2, 3, 3])))
    assert int(twice.sizes.sum()) == 3 and twice.sizes.tolist() == [2, 1]


# ---------------------------------------------------------------- learning


def part(**fields: Any) -> Part:
    return Part(("policy", "critic"), {"loss": Term(Clip()), "value": Term(Value())}, SimpleNamespace(), **fields)


def test_minibatches_keep_episodes_whole() -> None:
    task = Gym(**POLE)
    model, plain = built(task), CategoricalPolicy((4,))
    plain.build(task)
    (batch,) = collected(model, task, 150)
    ctx = testing.context(models=roles(model))
    minis = [*_minibatches(batch.take(batch.decides), part(minibatches=4), ctx, "k")]
    found = [set(m["episode"].tolist()) for m in minis]
    assert len(minis) == 4 and sum(map(len, found)) == len(set.union(*found)) > 8
    assert sum(map(len, minis)) == int(batch.decides.sum())
    for m in minis:  # nothing within is cut off
        assert len(find_stretches(m).firsts) == len(set(m["episode"].tolist()))
    ctx = testing.context(models=roles(plain))
    rows = [*_minibatches(batch.take(batch.decides), part(minibatches=4), ctx, "k")]
    assert len({len(m) for m in rows}) <= 2  # of others single rows, as ever


def test_micro_batches_are_refused() -> None:
    task = Gym(**POLE)
    model = built(task)
    (batch,) = collected(model, task, 30)
    ones = torch.ones_like(batch["logp"])
    batch = batch.put({"advantage": ones, "return": ones, "weight/rl": batch["mask"].float()})
    ctx = testing.context(models=roles(model))
    optimiser = SimpleNamespace(bind=lambda params: None, step=lambda loss, at: loss.backward())
    for tokens, refused in ((1000, False), (8, True)):
        made = Part(("policy", "critic"), {"loss": Term(Clip()), "value": Term(Value())}, optimiser)
        learner = GradientLearner(SimpleNamespace(), {"policy": made}, tokens=tokens)
        learner.bind(roles(model))
        if refused:
            with pytest.raises(ValueError, match="which reads whole episodes, and micro-batches"):
                learner.update(batch, ctx)
        else:
            learner.update(batch, ctx)


# ---------------------------------------------------------------- who plays it


def test_a_rollout_that_is_saved_goes_on_with_what_it_remembers() -> None:
    task = Gym(**POLE)
    model = built(task)
    ctx = testing.context(models=roles(model))
    rollout = VectorRollout(lanes=3)
    rollout.open(task, 7)
    rollout.collect(22, ctx)
    saved = dumps(rollout.state)
    expected = rollout.collect(40, ctx)
    other = VectorRollout(lanes=3)
    other.open(task, 7)
    other.state = loads(saved)
    got = other.collect(40, ctx)
    assert bool((got["memory"][:3] != 0).any())
    for name in expected.names():
        assert torch.equal(got[name], expected[name])
    assert dumps(other.state) == dumps(rollout.state)
    other.state = loads(saved)
    larger = testing.context(models=roles(built(task, size=6)))
    with pytest.raises(ValueError, match="has 20 numbers, and the model of role 'policy' remembers 24"):
        other.collect(5, larger)
    plain = CategoricalPolicy((4,))
    plain.build(task)
    with pytest.raises(ValueError, match="'policy' remembers nothing: expected 20"):
        other.collect(5, testing.context(models=roles(plain)))


def test_lanes_in_a_ring_of_slots_and_in_processes_remember_the_same() -> None:
    task = Gym(**POLE)
    model = built(task)
    (plain,) = collected(model, task, 60, lanes=4)
    (ring,) = collected(model, task, 60, lanes=4, ring=2)
    for name in ("context", "action", "episode"):
        assert torch.equal(plain[name], ring[name])
    torch.testing.assert_close(plain["memory"], ring["memory"], atol=1e-6, rtol=0)


def test_an_episode_played_alone_remembers_as_lanes_do_and_as_predict_does() -> None:
    task = Gym(**POLE)
    model = built(task)
    engine = Local()
    engine.sync({"policy": model}, 0)
    ctx = testing.context(task=task, models=roles(model), engine=engine)
    request = Request(task.problems("test")[0], 2, Sampling(), key="p#0")
    trajectories = asyncio.run(Episode().group(request, ctx))
    batch = pack(trajectories)
    scored = evaluate(batch, [LOGP, VALUE], roles(model))
    for e in batch["episode"].unique():
        rows = (batch["episode"] == e).nonzero().squeeze(1)
        logp, value = by_hand(model, batch["context"][rows], batch["action"][rows])
        decides = batch.decides[rows]
        torch.testing.assert_close(scored[LOGP.key][rows, 0][decides], logp[decides], atol=1e-5, rtol=0)
        torch.testing.assert_close(batch["logp"][rows, 0][decides], logp[decides], atol=1e-5, rtol=0)
        torch.testing.assert_close(scored[VALUE.key][rows, 0], value, atol=1e-5, rtol=0)

    loaded = LoadedPolicy(model, Sampling(), task.spaces()[0], actions=task.spaces()[1])
    state, seen = None, batch["context"][batch["episode"] == batch["episode"][0]].numpy()
    memory = batch["memory"][batch["episode"] == batch["episode"][0]][:, 0].numpy()
    for t in range(len(seen) - 1):
        action, state = loaded.predict(seen[t], state, deterministic=True)
        np.testing.assert_allclose(state[0], memory[t + 1], atol=1e-6)
        assert action.shape == ()
    pair = np.stack([seen[0], seen[0]])
    _, both = loaded.predict(pair, np.concatenate([state, state]), episode_start=[True, False])
    np.testing.assert_allclose(both[0], memory[1], atol=1e-6)
    assert not np.allclose(both[1], memory[1], atol=1e-3)
    with pytest.raises(ValueError, match=r"state has the shape \(1, 20\): expected \(2, 20\)"):
        loaded.predict(pair, state)
    with pytest.raises(TypeError, match="use predict"):
        loaded.act(seen[0])


def test_who_knows_nothing_of_memories_is_refused() -> None:
    task = Gym(**POLE)
    model = built(task)
    noise = CounterNoise([1, 2])
    with pytest.raises(ValueError, match="got no memory"):
        model.sample(torch.zeros(2, 2), Sampling(), noise=noise)
    with pytest.raises(ValueError, match=r"of a context has 3 numbers: expected 20, of a lstm of 5 units"):
        model.sample(with_memory(torch.zeros(2, 2), torch.zeros(2, 3)), Sampling(), noise=noise)
    (batch,) = collected(model, task, 12)
    bare = Batch({n: batch[n] for n in batch.names() if n != "memory"})
    with pytest.raises(ValueError, match="no column 'memory'"):
        model(bare)
    with pytest.raises(ValueError, match=r"some rows have no memory \(NaN\)"):
        model(cat([batch, bare]))
    several = batch.put({"role": torch.arange(len(batch)) % 2})
    with pytest.raises(ValueError, match="several roles"):
        model(several)
    other: Any = task_of(spaces.Dict({"memory": spaces.Box(0, 1, (2,))}), spaces.Discrete(2))
    with pytest.raises(TypeError, match="a part 'memory'"):
        RecurrentPolicy().build(other)
    bare_critic = built(task, critic="none")
    assert "value" not in bare_critic.offers
    with pytest.raises(ValueError, match="critic is 'none'"):
        bare_critic(batch.put({"memory": batch["memory"][..., :10]})).value()


def test_memories_are_put_to_contexts_and_parted_from_them() -> None:
    x, m = torch.zeros(2, 3), torch.ones(2, 4)
    assert with_memory(x, None) is x and part_memory(x) == (x, None)
    alone, both = part_memory(with_memory(x, m)), part_memory(with_memory({"a": x}, m))
    assert alone[0] is x and alone[1] is m
    assert both == ({"a": x}, m)


# ---------------------------------------------------------------- the contract, in spaces that no recipe has


def task_of(seen: Any, does: Any) -> Any:
    return SimpleNamespace(spaces=lambda: (seen, does))


def recalling(parts: dict[str, Tensor] | Tensor, size: int) -> Any:
    n = len(next(iter(parts.values())) if isinstance(parts, dict) else parts)
    return with_memory(parts, torch.randn(n, size, generator=torch.Generator().manual_seed(6)).tanh())


def seen(n: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(5))


def masked(n: int) -> dict[str, Tensor]:
    mask = torch.rand(n, 4, generator=torch.Generator().manual_seed(5)) < 0.5
    mask[torch.arange(n), torch.arange(n) % 4] = True
    return {"observation": seen(n), "action_mask": mask.to(torch.int8)}


BOX, FOUR = spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4, start=2)
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(4)})
SOFT = (Sampling(), Sampling(temperature=0.7, epsilon=0.2))


@pytest.mark.parametrize("case", [
    ModelCase("masked", lambda: RecurrentPolicy(size=6, hidden=(8,)), task_of(MASKED, FOUR),
              lambda n: recalling(masked(n), 24), SOFT, crowd=5_000),
    ModelCase("joint", lambda: RecurrentPolicy("gru", 6, (5,), (), normalise=True),
              task_of(BOX, spaces.MultiDiscrete([2, 3])), lambda n: recalling(seen(n), 12), SOFT, crowd=5_000),
    ModelCase("box", lambda: RecurrentPolicy("gru", 6, critic="shared", orthogonal=False),
              task_of(BOX, spaces.Box(-1, 1, (2,))), lambda n: recalling(seen(n), 6), crowd=5_000),
], ids=lambda c: c.name)  # fmt: skip
def test_it_keeps_the_contract_of_models(case: ModelCase) -> None:
    check_model(case)
