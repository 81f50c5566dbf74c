"""Whole updates of DQN, QR-DQN, SAC, TD3 and CrossQ beside those of Stable-Baselines3 and its contributions: losses,
gradients as the optimisers get them (clipped, and of the parts that are due), and all weights after the updates, also
of targets, and running moments.

Both sides train by their own code. Theirs is `train` of the model that `reproduce.make_model` makes, ours the learner
of the recipe that `shuhari reproduce` shows beside it; QR-DQN and CrossQ are made here, with the recipe's settings.
They get the same weights, transitions and draws of noise. Left out: what is drawn from the replay, and when DQN's
target follows, which is by environment steps there.

Axes: `B` rows, `A` action dimensions or alternatives, `m` quantiles, `n` critics.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, CrossQ
from sb3_contrib.common.torch_layers import BatchRenorm1d
from stable_baselines3 import DQN
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from reproduce import make_extractor, make_model
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.loop.context import Context
from shuhari.loop.run import open_run
from shuhari.models import gaussian
from shuhari.models.gaussian import Squashed
from shuhari.optimisers.adamw import AdamW

B, A, UPDATES, QUANTILES = 256, 3, 4, 32


class World(gymnasium.Env):
    """Spaces alone, as nothing is played. MinAtar's pictures are of bool, and of uint8 (`bytes`) as
    `reproduce.make_envs` gives them to Stable-Baselines3. `choices`: discrete actions, 0 for a Box."""

    def __init__(self, sees: str = "numbers", choices: int = 0) -> None:
        self.observation_space = {
            "numbers": spaces.Box(-np.inf, np.inf, (5,), np.float32),
            "pictures": spaces.Box(0, 1, (10, 10, 4), np.bool_),
            "bytes": spaces.Box(0, 1, (10, 10, 4), np.uint8),
        }[sees]
        self.action_space = spaces.Discrete(choices) if choices else spaces.Box(-2, 2, (A,), np.float32)

    def look(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        return self.look(), 0.0, True, False, {}


@pytest.fixture(autouse=True)
def in_double_precision(monkeypatch):
    """Both sides, or rounding would decide what Adam makes of weights that hardly have a gradient."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(gaussian, "_CONSTANT", torch.tensor(-0.5 * math.log(2 * math.pi) - 2 * math.log(2)))
    yield
    torch.set_default_dtype(torch.float32)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Equal to 1e-8 of the largest entry, which is not 0; they are so to 1e-9."""
    assert found.shape == expected.shape
    largest = float(expected.abs().max())
    away = float((found - expected).abs().max())
    assert largest > 0 and away <= 1e-8 * largest, f"{what}: {away:.1e} apart, of {largest:.1e}"


# ---------------------------------------------------------------- which tensors of ours are which of theirs


class Link(NamedTuple):
    """A parameter, those of theirs that it is made of, and how; `times`: their gradient beside ours."""

    mine: torch.Tensor
    of: tuple[torch.Tensor, ...]
    join: Any = torch.clone
    times: float = 1.0


def list_layers(module):
    return [m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]


def link_layers(mine, theirs):
    """Layer by layer."""
    pairs = list(zip(mine, theirs, strict=True))
    return [Link(a.weight, (b.weight,)) for a, b in pairs] + [Link(a.bias, (b.bias,)) for a, b in pairs]


def link_critics(mine, theirs, times=1.0):
    """Of critics that are one stacked net here, [n, in, out], and n nets there."""
    nets, links = [list_layers(net) for net in theirs.q_networks], []
    for w, b, *layers in zip(mine.weights, mine.biases, *nets, strict=True):
        links.append(Link(w, tuple(x.weight for x in layers), lambda *xs: torch.stack([x.T for x in xs]), times))
        links.append(Link(b, tuple(x.bias for x in layers), lambda *xs: torch.stack([x[None] for x in xs]), times))
    return links


def link_squashed(mine, theirs):
    """Of a policy whose last layer is one here, and one each for means and deviations there."""
    *hidden, last = mine.layers
    heads, join = (theirs.mu, theirs.log_std), lambda *xs: torch.cat(xs)
    return [*link_layers(hidden, list_layers(theirs.latent_pi)),
            Link(last.weight, tuple(x.weight for x in heads), join),
            Link(last.bias, tuple(x.bias for x in heads), join)]  # fmt: skip


def link_values(mine, theirs, m=1):
    """Of the values of alternatives, or their quantiles, which are [A, m] here and [m, A] there."""
    convolutions = [x for net in mine.inputs.convolutions for x in net.layers]
    links = link_layers([*convolutions, *mine.body.layers], list_layers(theirs))
    last, turn = mine.body.layers[-1], lambda x: x.unflatten(0, (m, -1)).transpose(0, 1).flatten(0, 1)
    return [x._replace(join=turn) if x.mine is last.weight or x.mine is last.bias else x for x in links]


def list_norms(module):
    return [m for m in module.modules() if isinstance(m, BatchRenorm1d)]


def link_norms(mine, nets, counted=True):
    """Of batch renormalisation, [n, 1, D] here. counted: the running moments too."""
    names = {"scale": "scale", "shift": "bias"} | ({"mean": "ra_mean", "var": "ra_var"} if counted else {})
    links = []
    for norm, *layers in zip(mine.norms, *map(list_norms, nets), strict=True):
        links += [Link(getattr(norm, a), tuple(getattr(x, b) for x in layers), lambda *xs: torch.stack(xs)[:, None])
                  for a, b in names.items()]  # fmt: skip
    return links


def link_renormed(mine, theirs):
    """Of the layers of a squashed policy with batch renormalisation, which is a stack of one here."""
    hidden = list_layers(theirs.latent_pi)
    links = [Link(w, (x.weight,), lambda x: x.T[None]) for w, x in zip(mine.weights, hidden, strict=False)]
    links += [Link(b, (x.bias,), lambda x: x[None, None]) for b, x in zip(mine.biases, hidden, strict=False)]
    heads = theirs.mu, theirs.log_std
    return [*links, Link(mine.weights[-1], tuple(x.weight for x in heads), lambda *xs: torch.cat(xs).T[None]),
            Link(mine.biases[-1], tuple(x.bias for x in heads), lambda *xs: torch.cat(xs)[None, None])]  # fmt: skip


def shake(*modules):
    """Move weights away from where they begin: those of the nets that a target follows, scales of 1, moments of 0."""
    for module in modules:
        moments = [x for name, x in module.named_buffers() if name.rpartition(".")[2] in ("ra_mean", "ra_var")]
        for i, x in enumerate([*(p.data for p in module.parameters()), *moments]):
            x += 0.05 * drawn(*x.shape, seed=i)


# ---------------------------------------------------------------- both sides


class Theirs:
    """A model of Stable-Baselines3 that is fed with transitions, and the gradients that its optimisers get."""

    def __init__(self, model):
        self.model, self.gradients = model, {}
        model.set_logger(Logger(None, []))
        owners = [model.actor, model.critic] if hasattr(model, "actor") else [model.policy]
        tuned = [model.ent_coef_optimizer] if hasattr(model, "ent_coef_optimizer") else []
        for optimiser in (*(x.optimizer for x in owners), *tuned):
            self._record(optimiser)

    def _record(self, optimiser):
        step, (group,) = optimiser.step, optimiser.param_groups

        def record():
            self.gradients.update({p: p.grad.clone() for p in group["params"]})
            step()

        optimiser.step = record

    def update(self, data):
        given = ReplayBufferSamples(data["seen"], data["action"], data["next"], data["done"], data["reward"])
        self.model.replay_buffer = SimpleNamespace(sample=lambda n, env: given)
        self.gradients.clear()
        self.model.logger.name_to_value.clear()
        self.model.train(1, B)
        return self.model.logger.name_to_value


class Ours:
    """A run of a recipe whose learner is fed with transitions, and the gradients that its optimisers get."""

    def __init__(self, recipe, monkeypatch, sees="numbers", choices=0, **settings):
        task = {"name": f"gym/{__file__}:World", "kwargs": {"sees": sees, "choices": choices}}
        self.run, self.gradients = open_run(load(recipe, settings={"task": task, "evaluate.n": 0, **settings})), {}
        self.run.enter_stage()
        move = AdamW._move

        def record(optimiser, piece, lr, at):
            self.gradients.update({p: g.clone() for p, g in zip(piece.params, piece.grads, strict=True)})
            move(optimiser, piece, lr, at)

        monkeypatch.setattr(AdamW, "_move", record)

    def net(self, role):
        return self.run.ctx.models[role].module

    def update(self, data):
        """As the loop does. Each row is followed by one that decides nothing, B rows on."""
        n = torch.arange(2 * B)
        batch = Batch({
            "context": torch.cat([data["seen"], data["next"]]),
            "action": torch.cat([data["action"], torch.zeros_like(data["action"])]).squeeze(1),
            "reward": torch.cat([data["reward"], torch.zeros(B, 1)]),
            "cont": torch.cat([torch.ones(B), 1 - data["done"][:, 0]]), "logp": torch.zeros(2 * B, 1), "id": n,
            "child": torch.where(n < B, n + B, -1), "mask": (n < B)[:, None],
        }, torch.arange(B), stream="rl", full=True)  # fmt: skip
        self.gradients.clear()
        updated = self.run.stage.learners["main"].update(batch, self.run.ctx)
        self.run.tell(updated)
        return updated.info


def make_transitions(pictures, choices, seed):
    """Errors lie on both sides of Huber's threshold; a quarter of the transitions are final."""
    rng = np.random.default_rng(seed)
    seen = (rng.random((2, B, 10, 10, 4)) < 0.3).astype(np.int8) if pictures else rng.normal(size=(2, B, 5))
    action = rng.integers(0, choices, (B, 1)) if choices else rng.uniform(-1, 1, (B, A))
    data = {"seen": seen[0], "next": seen[1], "action": action, "reward": 2 * rng.normal(size=(B, 1)),
            "done": (rng.random((B, 1)) < 0.25).astype(float)}  # fmt: skip
    return {name: torch.from_numpy(x) for name, x in data.items()}


def compare(ours, theirs, links, losses, pictures=False, choices=0, draws=None, updates=range(UPDATES)):
    """From the same weights, update after update. `losses`: our name -> (theirs, its size beside ours). `draws`: the
    noise that both sides take, renewed at each update."""
    for link in links:
        link.mine.data.copy_(link.join(*link.of))
    for k in updates:
        if draws is not None:
            draws.update(fresh=drawn(B, A, seed=2 * k), next=drawn(B, A, seed=2 * k + 1))
        data = make_transitions(pictures, choices, seed=k)
        found, expected = ours.update(data), theirs.update(data)
        for name, (other, times) in losses.items():
            assert (name in found) == (other in expected), f"{name} of update {k} is due on one side alone"
            if name in found:
                same(times * torch.tensor(found[name]), torch.tensor(expected[other]), f"{name} of update {k}")
        due = [link for link in links if link.mine in ours.gradients]
        assert {p for link in due for p in link.of} == theirs.gradients.keys()
        for i, (mine, of, join, times) in enumerate(due):
            same(times * ours.gradients[mine], join(*(theirs.gradients[p] for p in of)), f"gradient {i} of update {k}")
    for i, link in enumerate(links):
        same(link.mine.data, link.join(*link.of).data, f"weights {i}")


def make_envs(sees="numbers", choices=0):
    return DummyVecEnv([lambda: World(sees, choices)])


def share_noise(monkeypatch, turns=("fresh", "next") * UPDATES):
    """A dict of draws, by our names, that our objectives and their SAC (at its `turns`) and TD3 take."""
    draws, turn = {}, iter(turns)
    monkeypatch.setattr(Context, "noise", lambda self, batch, name: SimpleNamespace(normal=lambda i, n: draws[name]))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: draws[next(turn)])
    monkeypatch.setattr(torch.Tensor, "normal_", lambda x, mean, std: x.copy_(mean + std * draws["next"]))
    return draws


# ---------------------------------------------------------------- the methods

Q_LOSS = {"policy/loss/q_learning": ("train/loss", 1)}


def test_dqn_learns_the_same_from_pictures(monkeypatch):
    theirs = Theirs(make_model("dqn", "", make_envs("bytes", 4), 0))
    ours = Ours("reproduce/dqn_minatar", monkeypatch, "pictures", 4)
    shake(theirs.model.q_net_target)
    links = [*link_values(ours.net("policy"), theirs.model.q_net),
             *link_values(ours.net("target"), theirs.model.q_net_target)]  # fmt: skip
    compare(ours, theirs, links, Q_LOSS, True, 4)


def test_dqn_learns_the_same_from_numbers(monkeypatch):
    """With the settings of their zoo for CartPole. The gradient is clipped, as those of the pictures are not."""
    model = DQN("MlpPolicy", make_envs(choices=4), learning_rate=2.3e-3, seed=0, device="cpu",
                policy_kwargs={"net_arch": [256, 256]})  # fmt: skip
    model.max_grad_norm = clip = 0.05
    ours = Ours("reproduce/dqn_cartpole", monkeypatch, choices=4, **{"part.policy.optimiser.clip": clip})
    shake(model.q_net_target)
    links = [*link_values(ours.net("policy"), model.q_net), *link_values(ours.net("target"), model.q_net_target)]
    compare(ours, Theirs(model), links, Q_LOSS, choices=4)


def test_qr_dqn_learns_the_same(monkeypatch):
    """With 32 quantiles, whose midpoints single precision has exactly: theirs are in it. As released their Adam has
    another constant."""
    policy = {"features_extractor_class": make_extractor(), "net_arch": [], "normalize_images": False,
              "n_quantiles": QUANTILES, "optimizer_class": torch.optim.Adam}  # fmt: skip
    model = QRDQN("CnnPolicy", make_envs("bytes", 4), learning_rate=2.5e-4, max_grad_norm=10, seed=0, device="cpu",
                  policy_kwargs=policy)  # fmt: skip
    ours = Ours("reproduce/qr_dqn_minatar", monkeypatch, "pictures", 4, **{"models.policy.quantiles.n": QUANTILES})
    shake(model.quantile_net_target)
    links = [*link_values(ours.net("policy"), model.quantile_net, QUANTILES),
             *link_values(ours.net("target"), model.quantile_net_target, QUANTILES)]  # fmt: skip
    compare(ours, Theirs(model), links, Q_LOSS, True, 4)


def test_sac_learns_the_same_critic_policy_and_temperature(monkeypatch):
    """Without the constant that theirs adds under a logarithm: see the next test."""
    model = make_model("sac", "", make_envs(), 0)
    ours = Ours("reproduce/sac_mujoco", monkeypatch)
    model.actor.action_dist.epsilon = 0.0
    shake(model.critic_target)
    model.log_ent_coef.data.fill_(-1.2)  # at 0, as it begins, its loss is 0
    links = [*link_critics(ours.net("critic").body, model.critic),
             *link_critics(ours.net("target").body, model.critic_target),
             *link_squashed(ours.net("policy").body, model.actor),
             Link(ours.net("temperature").log, (model.log_ent_coef,), lambda x: x.view(()))]  # fmt: skip
    losses = {"critic/loss/soft_td": ("train/critic_loss", 1), "policy/loss/reparam": ("train/actor_loss", 1),
              "temperature/loss/temperature": ("train/ent_coef_loss", 1)}  # fmt: skip
    compare(ours, Theirs(model), links, losses, draws=share_noise(monkeypatch))


def test_their_squashed_density_differs_by_its_constant_alone(monkeypatch):
    """Theirs has log(1 - a² + 1e-6), ours log(1 - a²): for an action a = tanh(u), log(1 + 1e-6 cosh² u) apart, which
    is 1e-5 at |u| = 1.8 and 0.7 at |u| = 7.6."""
    mean, log_std = torch.zeros(B, A), torch.zeros(B, A)
    u = torch.linspace(-8, 8, B * A).view(B, A)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: u)
    _, theirs = SquashedDiagGaussianDistribution(A).log_prob_from_params(mean, log_std)
    noise = SimpleNamespace(normal=lambda i, n: u)
    _, ours = Squashed(mean[:, None], log_std[:, None], mean[:, None]).rsample(noise)
    apart = (1e-6 * u.cosh().square()).log1p().sum(1)
    torch.testing.assert_close(ours[:, 0] - theirs, apart, rtol=1e-5, atol=1e-9)


def test_td3_learns_the_same_critic_and_delayed_policy(monkeypatch):
    """The critic's loss is half of theirs, here as in SAC, which Adam does not see but for its constant: the recipe has
    half of theirs."""
    model = make_model("td3", "", make_envs(), 0)
    ours = Ours("reproduce/td3_mujoco", monkeypatch)
    shake(model.critic_target, model.actor_target)
    links = [*link_critics(ours.net("critic").body, model.critic, 2),
             *link_critics(ours.net("target").body, model.critic_target),
             *link_layers(ours.net("policy").body.layers, list_layers(model.actor)),
             *link_layers(ours.net("target_policy").body.layers, list_layers(model.actor_target))]  # fmt: skip
    losses = {"critic/loss/smoothed_td": ("train/critic_loss", 2),
              "policy/loss/deterministic": ("train/actor_loss", 1)}  # fmt: skip
    compare(ours, Theirs(model), links, losses, draws=share_noise(monkeypatch))


def test_crossq_learns_the_same_critic_policy_and_temperature(monkeypatch):
    """With the variance over B in theirs, which divides by B - 1. It counts a batch of the critic before the policy's
    loss, ours after the update: in the third one, which trains the policy, its critic counts none."""
    monkeypatch.setattr(torch.Tensor, "var", lambda x, dim: torch.var(x, dim, correction=0))
    model = CrossQ("MlpPolicy", make_envs(), seed=0, device="cpu", policy_kwargs={"net_arch": [256, 256]})
    model.policy.double()  # its batch renormalisation is of float32 whatever the default
    shake(*list_norms(model.policy))
    ours = Ours("baselines/crossq_pendulum", monkeypatch,
                **{"part.temperature.terms.temperature.target_entropy": -float(A)})  # fmt: skip
    model.actor.action_dist.epsilon = 0.0
    model.log_ent_coef.data.fill_(-1.2)
    critic, policy = ours.net("critic").body, ours.net("policy").body
    links = [*link_critics(critic, model.critic), *link_renormed(policy, model.actor),
             *link_norms(policy, [model.actor]),
             Link(ours.net("temperature").log, (model.log_ent_coef,), lambda x: x.view(()))]  # fmt: skip
    losses = {"critic/loss/joint_td": ("train/critic_loss", 1), "policy/loss/reparam": ("train/actor_loss", 1),
              "temperature/loss/temperature": ("train/ent_coef_loss", 1)}  # fmt: skip
    draws, theirs = share_noise(monkeypatch, ("next", "next", "next", "fresh")), Theirs(model)
    compare(ours, theirs, [*links, *link_norms(critic, model.critic.q_networks)], losses, draws=draws, updates=range(2))
    for norm in list_norms(model.critic):
        norm.momentum = 0.0
    links += link_norms(critic, model.critic.q_networks, counted=False)
    compare(ours, theirs, links, losses, draws=draws, updates=range(2, 3))
