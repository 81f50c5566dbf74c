"""The Decision Transformer: windows and returns by hand, what a token may see, and the model of transformers.

Axes: `B` rows, `W` steps of a window.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.offline import Offline
from shuhari.buffers.recording import RecordedEpisode, columns_of
from shuhari.data import Request, Sampling
from shuhari.desk.api import LoadedPolicy
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.kernel.recall import with_memory
from shuhari.models.decision_transformer import DecisionTransformer, Window
from shuhari.needs import Need, evaluate
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gym import Gym

LOGP = Need(("policy",), "log_prob")
SMALL = {"window": 3, "width": 8, "layers": 2, "heads": 2, "longest": 6, "normalise": False}
BOX, ACTS = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(np.float32([-2]), np.float32([2]))


def built(seen: Any, does: Any, **fields: Any) -> Any:
    model = DecisionTransformer(**{**SMALL, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(spaces=lambda: (seen, does)))  # type: ignore[arg-type]
    return model


def recorded() -> tuple[list[RecordedEpisode], Any]:
    rng = np.random.default_rng(0)
    made = [
        RecordedEpisode(rng.normal(size=(n + 1, 2)).astype(np.float32), rng.uniform(-2, 2, (n, 1)).astype(np.float32),
                        {"task": rng.normal(size=n).astype(np.float32)}, True)
        for n in (4, 7)
    ]  # fmt: skip
    return made, SimpleNamespace(read=lambda task, seed: columns_of(made), stamps=())


def drawn(model: Any) -> tuple[list[RecordedEpisode], Batch]:
    """All rows of the data set that decide, in the order of a draw of `offline`."""
    made, data = recorded()
    task = SimpleNamespace(spaces=lambda: (BOX, ACTS))
    ctx = testing.context(task=task, models={"policy": model}, weights={"task": 0.5})
    (batch,) = Offline(data, size=11).draw(ctx)
    return made, batch


def test_windows_of_recorded_rows_are_what_one_cuts_out_by_hand() -> None:
    model = built(BOX, ACTS, scale=10.0)
    made, batch = drawn(model)
    got = model._find(batch)
    found = set()
    for i, row in enumerate(batch.rows.tolist()):
        e, t = (0, row) if row < 5 else (1, row - 5)
        found.add((e, t))
        of, first = made[e], max(0, t - 2)
        n = t + 1 - first
        assert got.there[i].tolist() == [False] * (3 - n) + [True] * n
        reward = 0.5 * of.rewards["task"]
        to_go = [reward[k:].sum() / 10 for k in range(first, t + 1)]
        np.testing.assert_allclose(got.to_go[i, 3 - n :], to_go, atol=1e-6)
        np.testing.assert_allclose(got.features[i, 3 - n :], of.observations[first : t + 1])
        np.testing.assert_allclose(got.actions[i, 3 - n :], of.actions[first : t + 1] / 2, atol=1e-6)
        assert got.times[i, 3 - n :].tolist() == [*range(first, t + 1)]
    assert found == {(0, t) for t in range(4)} | {(1, t) for t in range(7)}


def test_the_loss_of_a_row_is_that_of_all_decisions_in_its_window() -> None:
    model = built(BOX, ACTS)
    _, batch = drawn(model)
    w = model._find(batch)
    out = model.module(w).tanh()
    got = model(batch).window()
    for i in range(len(batch)):
        keep = w.there[i]
        assert float(got[i]) == pytest.approx(-float(F.mse_loss(out[i, keep], w.actions[i, keep])), abs=1e-6)
    torch.testing.assert_close(model(batch).mode(), out[:, -1], atol=1e-6, rtol=0)

    choices = built(BOX, spaces.Discrete(3, start=1))
    g = torch.Generator().manual_seed(1)
    picked = torch.randint(0, 3, (len(batch.whole["mask"]),), generator=g)
    some = Batch({**batch.whole, "action": picked}, batch.rows, full=True)
    w = choices._find(some)
    logits, got = choices.module(w), choices(some).window()
    for i in range(len(some)):
        keep = w.there[i]
        expected = -F.cross_entropy(logits[i, keep], w.actions[i, keep].argmax(-1))
        assert float(got[i]) == pytest.approx(float(expected), abs=1e-6)
    law = torch.distributions.Categorical(logits=logits[:, -1])
    torch.testing.assert_close(choices(some).log_prob()[:, 0], law.log_prob(some["action"]), atol=1e-6, rtol=0)


def a_window(seed: int = 2, there: int = 3) -> Window:
    g = torch.Generator().manual_seed(seed)
    known = torch.arange(3) >= 3 - there
    return Window(torch.randn(1, 3, generator=g), torch.randn(1, 3, 2, generator=g), torch.randn(1, 3, 1, generator=g),
                  torch.tensor([[2, 3, 4]]), known[None])  # fmt: skip


def test_a_decision_sees_returns_and_states_up_to_it_and_actions_before_it() -> None:
    model = built(BOX, ACTS)
    w = a_window()
    with torch.no_grad():
        before = model.module(w)[0, :, 0]
        for name, reach in (("to_go", 0), ("features", 0), ("actions", 1)):
            for step in range(3):
                moved = getattr(w, name).clone()
                moved[:, step] += 1.0
                changed = (model.module(replace(w, **{name: moved}))[0, :, 0] - before).abs() > 1e-6
                assert changed.tolist() == [k >= step + reach for k in range(3)]


def test_steps_that_are_not_there_say_nothing() -> None:
    model = built(BOX, ACTS)
    w = a_window(there=2)
    with torch.no_grad():
        before = model.module(w)
        for name in ("to_go", "features", "actions"):
            moved = getattr(w, name).clone()
            moved[:, 0] = 99.0
            torch.testing.assert_close(model.module(replace(w, **{name: moved}))[:, 1:], before[:, 1:])
        assert bool(before.isfinite().all())


def test_tokens_stand_as_return_state_action() -> None:
    model = built(BOX, ACTS)
    w, net = a_window(), model.module
    got = net.tokens(w)[0]
    for t in range(3):
        time = net.time.weight[w.times[0, t]]
        made = (net.to_go(w.to_go[0, t : t + 1]), net.state(w.features[0, t]), net.action(w.actions[0, t]))
        for k, x in enumerate(made):
            torch.testing.assert_close(got[3 * t + k], F.layer_norm(x + time, (8,), net.norm.weight, net.norm.bias))
    late = net.tokens(replace(w, times=torch.tensor([[5, 6, 900]])))
    torch.testing.assert_close(late, net.tokens(replace(w, times=torch.tensor([[5, 5, 5]]))))


def theirs(net: Any) -> Any:
    """The model of transformers with our weights."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=2, act_dim=1, hidden_size=8, n_head=2, n_layer=2, n_inner=32, max_ep_len=6,
        activation_function="relu", resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, action_tanh=True, n_positions=64,
    )  # fmt: skip
    model: Any = DecisionTransformerModel(config).eval()
    linear = {"embed_return": net.to_go, "embed_state": net.state, "embed_action": net.action, "embed_ln": net.norm,
              "predict_action.0": net.head, "encoder.ln_f": net.last}  # fmt: skip
    turned: dict[str, Any] = {}
    for i, block in enumerate(net.blocks):
        at = f"encoder.h.{i}"
        linear |= {f"{at}.ln_1": block.before, f"{at}.ln_2": block.between}
        turned |= {f"{at}.attn.c_attn": block.attend, f"{at}.attn.c_proj": block.out, f"{at}.mlp.c_fc": block.up,
                   f"{at}.mlp.c_proj": block.down}  # fmt: skip
    weights = {"embed_timestep.weight": net.time.weight}
    for name, part in {**linear, **turned}.items():
        weights |= {f"{name}.weight": part.weight.mT if name in turned else part.weight, f"{name}.bias": part.bias}
    state = model.state_dict()
    lost = [n for n in state if n not in weights and not n.startswith(("predict_state", "predict_return"))]
    assert not [n for n in lost if "wpe" not in n and "wte" not in n and "attn.bias" not in n], lost
    with torch.no_grad():
        for name in lost:
            if "wpe" in name:  # positions are told by the embeddings of time alone
                state[name].zero_()
        for name, x in weights.items():
            assert state[name].shape == x.shape, name
            state[name].copy_(x)
    return model


@pytest.mark.parametrize("there", [1, 2, 3])
def test_the_net_is_that_of_transformers(there: int) -> None:
    model = built(BOX, ACTS)
    w = a_window(there=there)
    given = {"states": w.features, "actions": w.actions, "rewards": w.to_go[..., None], "timesteps": w.times,
             "returns_to_go": w.to_go[..., None], "attention_mask": w.there.long()}  # fmt: skip
    with torch.no_grad():
        expected = theirs(model.module)(**given, return_dict=True).action_preds
        got = model.module(w).tanh()
    torch.testing.assert_close(got[0, 3 - there :], expected[0, 3 - there :], atol=1e-5, rtol=0)


# ---------------------------------------------------------------- play


def asked_for(batch: Batch, model: Any, weight: float) -> Batch:
    """What was collected as if it were recorded: no memory, and the return that was asked for before each decision."""
    asked = torch.empty(len(batch), 1)
    for e in batch["episode"].unique():
        rows = (batch["episode"] == e).nonzero().squeeze(1)
        paid = weight * batch["reward/task"][rows, 0]
        asked[rows, 0] = model.target - (paid.cumsum(0) - paid)
    return Batch({**{n: batch[n] for n in batch.names() if n != "memory"}, "to_go": asked})


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_in_play_the_target_falls_by_the_rewards(name: str) -> None:
    task = Gym(name, {"max_episode_steps": 9})
    model = built(*task.spaces(), target=5.0, scale=3.0)
    engine = Local()
    engine.sync({"policy": model}, 0)
    ctx = testing.context(task=task, models={"policy": model}, engine=engine, weights={"task": 0.25})
    rollout = VectorRollout(lanes=3)
    rollout.open(task, 3)
    request = Request(task.problems("test")[0], 2, Sampling(), key="p#0")
    played = [rollout.collect(60, ctx), pack(asyncio.run(Episode().group(request, ctx)))]
    for batch in played:
        now = evaluate(batch, [LOGP], {"policy": model})[LOGP.key]
        torch.testing.assert_close(now[batch.decides], batch["logp"][batch.decides], atol=1e-5, rtol=0)
        again = evaluate(asked_for(batch, model, 0.25), [LOGP], {"policy": model})[LOGP.key]
        torch.testing.assert_close(again, now, atol=1e-4, rtol=0)
        wrong = evaluate(asked_for(batch, model, 1.0), [LOGP], {"policy": model})[LOGP.key]
        assert not torch.allclose(wrong, now, atol=1e-4)

    loaded, batch = LoadedPolicy(model, Sampling(), task.spaces()[0], actions=task.spaces()[1]), played[1]
    rows = (batch["episode"] == batch["episode"][0]).nonzero().squeeze(1)
    state, paid = None, None
    for i in rows.tolist():
        _, state = loaded.predict(batch["context"][i].numpy(), state, deterministic=True, reward=paid)
        paid = 0.25 * float(batch["reward/task"][i, 0])
    assert float(state[0, 0]) == len(rows)
    total = 0.25 * float(batch["reward/task"][rows[:-1], 0].sum())
    assert float(state[0, 1]) == pytest.approx(-total, abs=1e-4)
    with pytest.raises(ValueError, match="needs the rewards"):
        loaded.predict(batch["context"][0].numpy(), state)


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match="width is 10 and heads 3: expected a multiple, such as 12"):
        DecisionTransformer(width=10, heads=3)
    model = built(BOX, ACTS)
    _, batch = drawn(model)
    bare = Batch({n: x for n, x in batch.whole.items() if n != "to_go"})
    with pytest.raises(ValueError, match="neither a memory nor the column 'to_go'"):
        model(bare)
    unknown = Batch({**batch.whole, "to_go": torch.full_like(batch.whole["to_go"], torch.nan)})
    with pytest.raises(ValueError, match="returns to go are NaN"):
        model(unknown)
    noise: Any = None
    with pytest.raises(ValueError, match="got no memory"):
        model.sample(torch.zeros(1, 2), Sampling(), noise=noise)
    with pytest.raises(ValueError, match=r"a memory of 3 numbers: expected 10"):
        model.sample(with_memory(torch.zeros(1, 2), torch.zeros(1, 3)), Sampling(), noise=noise)
    with pytest.raises(TypeError, match="Discrete"):
        built(BOX, spaces.MultiBinary(2))


def test_a_window_of_one_step_is_no_sequence() -> None:
    model: Any = built(BOX, ACTS, window=1)
    assert model.memory == 2
    seen: Tensor = torch.zeros(2, 2)
    traces = model.sample(with_memory(seen, torch.zeros(2, 2)), Sampling(greedy=True), noise=None)
    assert traces.memory.tolist() == [[1.0, 0.0]] * 2
