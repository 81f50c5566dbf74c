"""Our recurrent model beside the policy of sb3-contrib's RecurrentPPO: the same weights, observations and episodes.

Skipped where sb3-contrib is not installed. Axes: `T` steps of a rollout, `N` lanes.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparing import TOLERANCE
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.models.recurrent import RecurrentPolicy
from shuhari.needs import Need, evaluate

pytest.importorskip("sb3_contrib")

from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from sb3_contrib.ppo_recurrent.policies import MlpLstmPolicy

T, N, H = 40, 3, 8
SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def pair(does):
    """(theirs, ours) with the same weights: an LSTM each for actor and critic, one hidden layer of tanh."""
    torch.manual_seed(0)
    theirs = MlpLstmPolicy(SEEN, does, lambda _: 1e-3, net_arch=[5], lstm_hidden_size=H, ortho_init=False)
    ours = RecurrentPolicy(size=H, hidden=(5,))
    ours.build(SimpleNamespace(spaces=lambda: (SEEN, does)))
    body, mlp = ours.module, theirs.mlp_extractor
    parts = [
        (body.actor.cell, theirs.lstm_actor), (body.critic.cell, theirs.lstm_critic),
        (body.heads["policy"].layers[0], mlp.policy_net[0]), (body.heads["policy"].layers[1], theirs.action_net),
        (body.heads["value"].layers[0], mlp.value_net[0]), (body.heads["value"].layers[1], theirs.value_net),
    ]  # fmt: skip
    for mine, other in parts:
        mine.load_state_dict(other.state_dict())
    if isinstance(does, spaces.Box):
        body.log_std.data.copy_(theirs.log_std.data)
    return theirs, ours


def played(theirs, does):
    """A rollout of theirs, [T, N] each: observations, actions, log-probabilities, values, starts, states [T, N, 4H]."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(T, N, 3)).astype(np.float32)
    start = rng.random((T, N)) < 0.1
    start[0] = True
    zero = torch.zeros(1, N, H)
    states = RNNStates((zero, zero), (zero, zero))
    out = {n: [] for n in ("action", "logp", "value", "memory")}
    kept = []
    for t in range(T):
        begins = torch.from_numpy(start[t]).float()
        kept.append(states)  # as the buffer keeps them: before they are reset
        memory = torch.cat([*states.pi, *states.vf], -1)[0] * (1 - begins)[:, None]
        with torch.no_grad():
            action, value, logp, states = theirs(torch.from_numpy(seen[t]), states, begins)
        for name, x in (("action", action), ("logp", logp), ("value", value[:, 0]), ("memory", memory)):
            out[name].append(x)
    return seen, start, {n: torch.stack(x) for n, x in out.items()}, kept


def as_rows(seen, start, found):
    """The same as our rows, step after step: a row's parent is the row above in its lane, unless it begins there."""
    rows = np.arange(T * N).reshape(T, N)
    parent = np.where(start, -1, rows - N)
    flat = {n: found[n].flatten(0, 1) for n in ("action", "logp")}
    return Batch({
        "context": torch.from_numpy(seen).flatten(0, 1), "action": flat["action"], "logp": flat["logp"][:, None],
        "mask": torch.ones(T * N, 1, dtype=torch.bool), "parent": torch.from_numpy(parent).flatten(),
        "memory": found["memory"].flatten(0, 1)[:, None],
    })  # fmt: skip


@pytest.mark.parametrize("does", [spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)], ids=["discrete", "box"])
def test_log_probabilities_values_and_gradients_of_a_rollout_and_of_their_minibatches(does):
    theirs, ours = pair(does)
    seen, start, found, kept = played(theirs, does)
    batch = as_rows(seen, start, found)
    roles = {"policy": ours, "critic": ours}
    needs = [Need(("policy",), "log_prob"), Need(("critic",), "value"), Need(("policy",), "entropy")]
    got = evaluate(batch, needs, roles)
    torch.testing.assert_close(got[needs[0].key][:, 0], found["logp"].flatten(), **TOLERANCE)
    torch.testing.assert_close(got[needs[1].key][:, 0], found["value"].flatten(), **TOLERANCE)

    buffer = RecurrentRolloutBuffer(T, SEEN, does, (T, 1, N, H), device="cpu", n_envs=N)
    for t in range(T):
        action = found["action"][t].numpy().reshape(N, -1)
        buffer.add(seen[t], action, np.zeros(N), start[t].astype(np.float32), found["value"][t], found["logp"][t],
                   lstm_states=kept[t])  # fmt: skip
    np.random.seed(0)  # noqa: NPY002 (theirs draws from it)
    whole = {tuple(x.tolist()): i for i, x in enumerate(batch["context"])}
    for mini in buffer.get(30):
        keep = mini.mask > 0.5
        action = mini.actions.long().flatten() if isinstance(does, spaces.Discrete) else mini.actions
        value, logp, entropy = theirs.evaluate_actions(mini.observations, action, mini.lstm_states, mini.episode_starts)
        rows = torch.tensor([whole[tuple(x.tolist())] for x in mini.observations[keep]])
        live = [Need(n.roles, n.name, live=True) for n in needs]
        mine = evaluate(batch.take(rows), live, roles, trains=("policy",))
        for a, b in zip(live, (logp, value.flatten(), entropy), strict=True):
            torch.testing.assert_close(mine[a.key][:, 0], b[keep], **TOLERANCE)
        weights = torch.linspace(-1, 1, len(rows))
        loss = (weights * (logp[keep] + value.flatten()[keep])).sum()
        other = torch.autograd.grad(loss, [theirs.lstm_actor.weight_hh_l0, theirs.lstm_critic.weight_ih_l0])
        loss = (weights * (mine[live[0].key] + mine[live[1].key])[:, 0]).sum()
        params = [ours.module.actor.cell.weight_hh_l0, ours.module.critic.cell.weight_ih_l0]
        for x, y in zip(torch.autograd.grad(loss, params), other, strict=True):
            torch.testing.assert_close(x, y, **TOLERANCE)
