"""Temporal-difference losses and the policy losses beside them: targets by hand, value iteration as the fixed point,
soft and smoothed targets, gradients through the critic, the temperature, TD3's delays."""

import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.run import loop, open_run
from shuhari.models.critics import ContinuousQ, DiscreteQ, ScalarModel
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.models.gaussian import SquashedPolicy
from shuhari.needs import evaluate
from shuhari.objectives.reparam import Deterministic, Reparam
from shuhari.objectives.td import QLearning, SmoothedTD, SoftTD, member_values, td_target
from shuhari.objectives.temperature import Temperature


def context(**models):
    return testing.context(models=models, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


def live(objective, batch, ctx):
    """With the live columns of the objective, as the learner gives them."""
    return batch.put(evaluate(batch, objective.needs, ctx.models, [objective.role]))


class Table:
    """Q of S states and A actions; answers as `DiscreteQ` does."""

    def __init__(self, q):
        self.q = torch.tensor(q, dtype=torch.float64, requires_grad=True)
        self.module = None

    def __call__(self, batch):
        q = self.q[batch["context"].long()][:, None]
        taken = q.gather(2, batch["action"][:, None, None])[..., 0]
        return SimpleNamespace(all=lambda: q, value=lambda: taken)


def transitions(context, action, reward, after, cont, **more):
    """Rows of one transition each, their successors behind them as closing rows."""
    n = len(context)
    columns = {
        "context": torch.tensor([*context, *after]),
        "action": torch.tensor([*action, *([0] * n)]),
        "reward": torch.tensor([*reward, *([0.0] * n)])[:, None],
        "cont": torch.tensor([1.0] * n + list(cont)),
        "child": torch.tensor([*range(n, 2 * n), *([-1] * n)]),
        "mask": torch.tensor([[True]] * n + [[False]] * n),
        "logp": torch.zeros(2 * n, 1),
        **{k: torch.tensor([*v, *([1] * n)]) for k, v in more.items()},
    }
    return Batch(columns, torch.arange(n), stream="rl")


def test_q_learning_targets_by_hand():
    ctx = context(policy=Table([[0.0, 5.0], [3.0, 1.0]]), target=Table([[10.0, 20.0], [30.0, 40.0]]))
    batch = transitions([0, 0, 1], [1, 0, 0], [1.0, 2.0, 3.0], [1, 1, 0], [1.0, 0.0, 1.0])
    expected = {
        # max of the target net: 40, 40, 20; the second transition ends the episode
        False: [1 + 0.9 * 40, 2.0, 3 + 0.9 * 20],
        # the net's own choice is action 0 in state 1 and action 1 in state 0
        True: [1 + 0.9 * 30, 2.0, 3 + 0.9 * 20],
    }
    for double, y in expected.items():
        objective = QLearning(gamma=0.9, double=double, loss="squared")
        loss, info = objective(live(objective, batch, ctx), ctx)
        assert info["target"].tolist() == pytest.approx(y)
        assert info["value"].tolist() == [5.0, 0.0, 3.0]
        assert loss.tolist() == pytest.approx([(v - t) ** 2 / 2 for v, t in zip([5.0, 0.0, 3.0], y, strict=True)])
    huber, _ = QLearning(gamma=0.9)(live(QLearning(), batch, ctx), ctx)
    assert huber.tolist() == pytest.approx([37 - 5 - 0.5, 2 - 0.5, 21 - 3 - 0.5])
    durations = transitions([0], [0], [1.0], [1], [1.0], duration=[3])
    _, info = QLearning(gamma=0.5)(live(QLearning(), durations, ctx), ctx)
    assert info["target"].tolist() == pytest.approx([1 + 0.5**3 * 40])


def test_a_row_without_a_successor_ends_there():
    ctx = context(policy=Table([[0.0, 0.0]]), target=Table([[7.0, 8.0]]))
    batch = transitions([0], [0], [1.5], [0], [1.0])
    batch.whole["child"][:] = -1
    _, info = QLearning()(live(QLearning(), batch, ctx), ctx)
    assert info["target"].tolist() == [1.5]


def test_the_gradient_of_q_learning_reaches_the_taken_action_only():
    ctx = context(policy=Table([[0.0, 5.0], [3.0, 1.0]]), target=Table([[10.0, 20.0], [30.0, 40.0]]))
    batch = transitions([0], [1], [1.0], [1], [1.0])
    objective = QLearning(gamma=0.9, double=True, loss="squared")
    objective(live(objective, batch, ctx), ctx)[0].sum().backward()
    assert ctx.models["policy"].q.grad.tolist() == [[0.0, pytest.approx(5 - 28.0)], [0.0, 0.0]]
    assert ctx.models["target"].q.grad is None


@pytest.mark.parametrize("double", [False, True])
def test_q_learning_converges_to_value_iteration(double):
    """A chain of two states: stay (0) or move (1); moving out of state 1 ends the episode with reward 5."""
    after, reward, cont = [[0, 1], [1, 0]], [[0.1, 0.0], [1.0, 5.0]], [[1.0, 1.0], [1.0, 0.0]]
    gamma, best = 0.7, np.zeros((2, 2))
    for _ in range(200):
        best = np.array(reward) + gamma * np.array(cont) * best.max(1)[np.array(after)]
    every = [(s, a) for s in (0, 1) for a in (0, 1)]
    pick = lambda table: [table[s][a] for s, a in every]  # noqa: E731
    batch = transitions([s for s, _ in every], [a for _, a in every], pick(reward), pick(after), pick(cont))
    net = Table([[0.0, 0.0], [0.0, 0.0]])
    ctx = context(policy=net, target=net)
    objective = QLearning(gamma=gamma, double=double, loss="squared")
    for _ in range(200):
        (g,) = torch.autograd.grad(objective(live(objective, batch, ctx), ctx)[0].sum(), net.q)
        with torch.no_grad():
            net.q -= 0.5 * g
    np.testing.assert_allclose(net.q.detach(), best, atol=1e-6)


def test_the_models_of_the_library_answer_what_q_learning_asks():
    task = SimpleNamespace(spaces=lambda: (gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(4)))
    nets = {}
    for role in ("policy", "target"):
        torch.manual_seed(len(role))
        nets[role] = DiscreteQ((16,))
        nets[role].build(task)
    n, rng = 6, np.random.default_rng(0)
    batch = transitions(rng.normal(size=(n, 3)).astype(np.float32).tolist(), rng.integers(0, 4, n).tolist(),
                        rng.normal(size=n).tolist(), rng.normal(size=(n, 3)).tolist(), [1.0, 0.0] * 3)  # fmt: skip
    ctx = context(**nets)
    objective = QLearning(gamma=0.9, double=True)
    loss, _ = objective(live(objective, batch, ctx), ctx)
    x, y = batch.whole["context"][:n], batch.whole["context"][n:]
    q = nets["policy"].module(x)[torch.arange(n), batch["action"]]
    bootstrap = nets["target"].module(y)[torch.arange(n), nets["policy"].module(y).argmax(1)]
    target = batch["reward"][:, 0] + 0.9 * batch.successors()["cont"] * bootstrap
    torch.testing.assert_close(loss, torch.nn.functional.smooth_l1_loss(q, target, reduction="none"))


def built(width, **roles):
    """The models, in a world of three observed numbers and actions of this width."""
    box = gymnasium.spaces.Box
    task = SimpleNamespace(spaces=lambda: (box(-1, 1, (3,)), box(-2, 2, (width,))))
    for i, model in enumerate(roles.values()):
        torch.manual_seed(i)
        model.build(task)
    return roles


def continuous(cont, width):
    """Random transitions in that world, their successors behind them as closing rows."""
    rng, n = np.random.default_rng(0), len(cont)
    numbers = lambda *shape: torch.from_numpy(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    columns = {
        "context": numbers(2 * n, 3),
        "action": torch.cat([numbers(n, width).tanh(), torch.zeros(n, width)]),
        "reward": torch.cat([numbers(n), torch.zeros(n)])[:, None],
        "cont": torch.tensor([1.0] * n + cont),
        "child": torch.tensor([*range(n, 2 * n), *([-1] * n)]),
        "mask": torch.tensor([[True]] * n + [[False]] * n),
    }
    return Batch(columns, torch.arange(n))


@pytest.mark.parametrize("width", [1, 3])
def test_the_soft_target_is_the_least_member_less_the_weighted_log_probability(width):
    critics = {"critic": ContinuousQ(2, (8,)), "target": ContinuousQ(2, (8,))}
    roles = built(width, policy=SquashedPolicy((8,)), temperature=ScalarModel(0.3), **critics)
    n, batch = 5, continuous([1.0, 0, 1, 1, 0], width)
    seen, after = batch["context"], batch.successors()["context"]
    action, reward = batch["action"], batch["reward"][:, 0]
    ctx = context(**roles)
    objective = SoftTD(gamma=0.9)
    batch = live(objective, batch, ctx)
    loss, info = objective(batch, ctx)

    mean, log_std = roles["policy"].module(after).chunk(2, -1)
    u = mean + log_std.exp() * CounterNoise(keys(3, "next", n=n)).normal(0, width)
    law = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(law, [torch.distributions.TanhTransform(cache_size=1)])
    logp = squashed.log_prob(squashed.transforms[0](u)).sum(1)
    q = roles["target"].module(torch.cat([after, u.tanh()], 1))[..., 0]  # [n members, B]
    y = reward + 0.9 * batch.successors()["cont"] * (torch.minimum(q[0], q[1]) - 0.3 * logp)
    torch.testing.assert_close(info["target"], y.detach(), atol=1e-5, rtol=1e-5)
    mine = roles["critic"].module(torch.cat([seen, action], 1))[..., 0]
    torch.testing.assert_close(loss, ((mine - y.detach()) ** 2).sum(0) / 2, atol=1e-5, rtol=1e-5)
    assert info["target"][1] == reward[1]  # the end of an episode: its reward and nothing else


def test_the_soft_target_of_a_subset_and_without_entropy_by_hand():
    """Q_i = i at the drawn action, so that the least of a subset of two names it: each of ten pairs in ten, the least
    0, 1, 2, 3 in 4, 3, 2, 1 of them. log pi is -1 and the temperature 10."""
    batch = continuous([1.0, 0.0], 1)
    r = batch["reward"][:, 0]
    policy = lambda batch: SimpleNamespace(  # noqa: E731
        rsample=lambda noise: (torch.zeros(len(batch), 1), -torch.ones(len(batch), 1))
    )
    models = {"target": linear(*[0.0] * 5), "policy": policy}
    seen = batch.put({"live/critic/value": torch.zeros(2, 1, 5)})

    def least(seed, **settings):
        ctx = testing.context(models=models, rng=lambda *name: torch.Generator().manual_seed(seed))
        target = SoftTD(gamma=0.5, entropy=False, **settings)(seen, ctx)[1]["target"]
        assert target[1] == r[1]
        return round(float((target - r)[0]) / 0.5)

    assert SoftTD(entropy=False).roles == ("critic", "target", "policy") and "temperature" in SoftTD().roles
    assert {least(seed) for seed in range(5)} == {0} == {least(seed, subset=5) for seed in range(5)}
    found = np.bincount([least(seed, subset=2) for seed in range(1000)], minlength=5)
    assert np.abs(found - 100 * np.array([4, 3, 2, 1, 0])).max() < 65  # four deviations of the first
    with pytest.raises(ValueError, match="at most the 5 members of 'target'"):
        least(0, subset=6)
    models["policy"] = lambda batch: SimpleNamespace(mode=lambda: torch.ones(len(batch), 1))
    models["target"] = linear(1.0, 2.0)  # at its mode, 1
    y = SoftTD(gamma=0.5, entropy=False, greedy=True)(seen, context(**models))[1]["target"]
    torch.testing.assert_close(y, r + 0.5 * torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="greedy and entropy are both true"):
        SoftTD(greedy=True)
    models["temperature"], models["policy"] = lambda batch: SimpleNamespace(value=lambda: torch.tensor(10.0)), policy
    models["target"] = linear(*[0.0] * 5)
    y = SoftTD(gamma=0.5)(seen, context(**models))[1]["target"]
    torch.testing.assert_close(y, r + 0.5 * torch.tensor([10.0, 0.0]))  # 0 + 10


@pytest.mark.parametrize("width", [1, 3])
def test_the_smoothed_target_against_the_papers_algorithm(width):
    """TD3 written out: a' = clip(pi'(s') + clip(eps, -c, c), -1, 1), y = r + gamma (1 - done) min(Q1', Q2')(s', a')."""
    critics = {"critic": ContinuousQ(2, (8,)), "target": ContinuousQ(2, (8,))}
    roles = built(width, target_policy=DeterministicPolicy((8,)), **critics)
    with torch.no_grad():
        roles["target_policy"].module.body.layers[-1].weight.mul_(8)  # actions near their bounds too
    n, batch = 40, continuous([1.0, 0.0, 1.0, 1.0] * 10, width)
    ctx, objective = context(**roles), SmoothedTD(gamma=0.9, noise=0.6, clip=0.5)
    loss, info = objective(live(objective, batch, ctx), ctx)

    after, done = batch.successors()["context"], 1 - batch.successors()["cont"]
    eps = 0.6 * CounterNoise(keys(3, "next", n=n)).normal(0, width)
    mean = roles["target_policy"].module(after).tanh()
    assert bool((eps.abs() > 0.5).any()) and bool(((mean + eps.clamp(-0.5, 0.5)).abs() > 1).any())  # both clips act
    action = (mean + eps.clamp(-0.5, 0.5)).clamp(-1, 1)
    q1, q2 = roles["target"].module(torch.cat([after, action], 1))[..., 0]
    y = (batch["reward"][:, 0] + 0.9 * (1 - done) * torch.minimum(q1, q2)).detach()
    torch.testing.assert_close(info["target"], y)
    mine = roles["critic"].module(torch.cat([batch["context"], batch["action"]], 1))[..., 0]
    torch.testing.assert_close(loss, ((mine[0] - y) ** 2 + (mine[1] - y) ** 2) / 2)
    gradients = torch.autograd.grad(loss.sum(), list(roles["critic"].module.parameters()))
    assert all(bool(g.abs().sum() > 0) for g in gradients)
    assert all(p.grad is None for role in ("target", "target_policy") for p in roles[role].module.parameters())


def fixed(action):
    """A deterministic policy that always answers this."""
    return lambda batch: SimpleNamespace(mode=lambda: action[: len(batch)])


def linear(*slopes):
    """A critic whose members are Q_i(s, a) = slope_i · a + i, of one dimension."""
    q = lambda a: torch.stack([slope * a[:, 0] + i for i, slope in enumerate(slopes)], 1)[:, None]  # noqa: E731
    return lambda batch: SimpleNamespace(value=lambda: q(batch["action"]))


def test_smoothed_targets_by_hand():
    """Q1' = 2a, Q2' = 1 - 3a at pi' = 0.5 without noise: min(1, -0.5); with a huge noise a' is 0.5 ± 0.2."""
    batch = continuous([1.0, 0.0, 1.0], 1)
    r = batch["reward"][:, 0]
    ctx = context(critic=linear(0.0), target=linear(2.0, -3.0), target_policy=fixed(torch.full((3, 1), 0.5)))
    seen = batch.put({"live/critic/value": torch.tensor([[4.0], [5.0], [6.0]])})
    loss, info = SmoothedTD(gamma=0.5, noise=0.0)(seen, ctx)
    y = r + 0.5 * torch.tensor([1.0, 0.0, 1.0]) * -0.5
    torch.testing.assert_close(info["target"], y)
    torch.testing.assert_close(loss, (torch.tensor([4.0, 5.0, 6.0]) - y).square() / 2)
    _, info = SmoothedTD(gamma=0.5, noise=1e6, clip=0.2)(seen, ctx)
    sign = CounterNoise(keys(3, "next", n=3)).normal(0, 1)[:, 0].sign()
    y = r + 0.5 * torch.tensor([1.0, 0.0, 1.0]) * (1 - 3 * (0.5 + 0.2 * sign))  # 1 - 3a is the smaller at 0.3 and 0.7
    torch.testing.assert_close(info["target"], y)


@pytest.mark.parametrize(("over", "q", "slope"), [("first", 0.8, 2.0), ("min", -0.2, -3.0), ("mean", 0.3, -0.5)])
def test_the_deterministic_gradient_by_hand(over, q, slope):
    """Q1 = 2a and Q2 = 1 - 3a at a = 0.4: the loss is -Q, its gradient in the action -dQ/da."""
    action = torch.full((3, 1), 0.4, requires_grad=True)
    ctx = context(policy=fixed(action), critic=linear(2.0, -3.0))
    loss, info = Deterministic(over=over)(continuous([1.0, 1.0, 1.0], 1), ctx)
    torch.testing.assert_close(loss, torch.full((3,), -q))
    torch.testing.assert_close(info["q"], torch.full((3,), q))
    (g,) = torch.autograd.grad(loss.sum(), action)
    torch.testing.assert_close(g, torch.full((3, 1), -slope))


def test_the_deterministic_gradient_is_the_chain_rule():
    """d(-Q1)/dw = -dQ1/da · dpi/dw, both factors taken apart."""
    roles = built(2, policy=DeterministicPolicy((8,)), critic=ContinuousQ(2, (8,)))
    batch = continuous([1.0] * 6, 2)
    loss, _ = Deterministic()(batch, context(**roles))
    weights = list(roles["policy"].module.parameters())
    found = torch.autograd.grad(loss.sum(), weights)
    action = roles["policy"].module(batch["context"]).tanh()
    leaf = action.detach().requires_grad_()
    q = roles["critic"].module(torch.cat([batch["context"], leaf], 1))[0, :, 0]
    (slope,) = torch.autograd.grad(q.sum(), leaf)
    for a, b in zip(found, torch.autograd.grad(action, weights, -slope), strict=True):
        torch.testing.assert_close(a, b)


def test_td3_trains_the_policy_and_moves_the_targets_on_every_second_update(tmp_path):
    """The paper's algorithm box: critics at every update; at each second one the policy, and after it both targets."""
    tiny = {"buffer.collect": 1, "buffer.warmup": 8, "buffer.size": 4, "rollout.random": 8, "remove": ["evaluate"]}
    run = open_run(load("baselines/td3_pendulum").with_settings({**tiny, "env_steps": 14}), tmp_path / "run")
    weights = lambda role: [p.detach().clone() for p in run.ctx.models[role].module.parameters()]  # noqa: E731
    same = lambda role: all(map(torch.equal, before[role], after[role]))  # noqa: E731
    before, updates = {}, 0
    for _ in loop(run):
        after = {r: weights(r) for r in ("policy", "critic", "target", "target_policy")}
        done = run.stage.learners["main"].state["updates"]
        if done == updates + 1:
            second = done % 2 == 0
            assert not same("critic") and same("policy") == (not second)
            for target, of in (("target", "critic"), ("target_policy", "policy")):
                assert same(target) == (not second)
                for t, o, x in zip(after[target], before[target], after[of], strict=True):
                    torch.testing.assert_close(t, o + 0.005 * (x - o) * second, atol=1e-7, rtol=0)
        before, updates = after, done
    assert updates >= 4


class Normal1:
    """A normal decision whose mean and log standard deviation are its parameters."""

    def __init__(self, mean, log_std):
        self.mean, self.log_std = (torch.tensor(x, requires_grad=True) for x in (mean, log_std))

    def __call__(self, batch):
        def rsample(noise):
            eps = noise.normal(0, 1)
            self.eps = eps[:, 0]
            logp = -eps.square() / 2 - self.log_std - math.log(2 * math.pi) / 2
            return self.mean + self.log_std.exp() * eps, logp

        return SimpleNamespace(rsample=rsample)


def scalar(value):
    model = ScalarModel(value)
    model.build(None)
    return model


@pytest.mark.parametrize("over", ["min", "mean"])
def test_the_policy_gradient_through_the_critic_by_hand(over):
    """Q1 = -(a - 1)², Q2 = Q1 + 3: the gradient of alpha log pi - Q with a = m + s eps is 2 (a - 1) in m, and
    -alpha + 2 (a - 1) s eps in log s; the constant 3 shows in the loss alone."""
    quadratic = lambda a: torch.cat([-(a - 1).square(), 3 - (a - 1).square()], 1)[:, None]  # noqa: E731
    policy, alpha = Normal1(0.4, -0.5), 0.2
    critic = lambda batch: SimpleNamespace(value=lambda: quadratic(batch["action"]))  # noqa: E731
    ctx = context(policy=policy, critic=critic, temperature=scalar(alpha))
    batch = Batch(
        {"mask": torch.ones(6, 1, dtype=torch.bool), "context": torch.zeros(6, 1), "action": torch.zeros(6, 1)}
    )
    loss, info = Reparam(over=over)(batch, ctx)
    s, eps = math.exp(-0.5), policy.eps
    a = 0.4 + s * eps
    logp = torch.distributions.Normal(0.4, s).log_prob(a)
    q = -(a - 1).square() + (1.5 if over == "mean" else 0)
    torch.testing.assert_close(loss, alpha * logp - q)
    torch.testing.assert_close(info["q"], q)
    by_mean, by_std = torch.autograd.grad(loss.sum(), [policy.mean, policy.log_std])
    torch.testing.assert_close(by_mean, (2 * (a - 1)).sum())
    torch.testing.assert_close(by_std, (-alpha + 2 * (a - 1) * s * eps).sum())
    torch.testing.assert_close(batch["fresh/log_prob"], logp[:, None])
    assert not batch["fresh/log_prob"].requires_grad


def test_the_temperature_falls_where_the_entropy_is_above_its_target():
    ctx = context(temperature=scalar(0.5))
    batch = Batch({"mask": torch.ones(3, 1, dtype=torch.bool)})
    objective = Temperature(target_entropy=-1.0)
    with pytest.raises(KeyError, match="reparam"):
        objective(batch, ctx)
    batch.stamp("fresh/log_prob", torch.tensor([[0.5], [-2.0], [3.0]]))
    loss, info = objective(batch, ctx)
    log = math.log(0.5)
    assert loss.tolist() == pytest.approx([-log * (0.5 - 1), -log * (-2 - 1), -log * (3 - 1)])
    (g,) = torch.autograd.grad(loss.mean(), list(ctx.models["temperature"].module.parameters()))
    assert float(g) == pytest.approx(-((0.5 - 2 + 3) / 3 - 1))  # > 0: the entropy -0.5 is above -1, so alpha falls
    assert info["entropy"].mean() == pytest.approx(-0.5) and float(info["temperature"]) == pytest.approx(0.5)


def test_the_target_entropy_is_minus_the_numbers_of_an_action_by_default():
    batch = Batch({"mask": torch.ones(3, 1, dtype=torch.bool), "action": torch.zeros(3, 6)})
    batch.stamp("fresh/log_prob", torch.tensor([[0.5], [-2.0], [3.0]]))
    ctx = context(temperature=scalar(0.5))
    assert torch.equal(Temperature()(batch, ctx)[0], Temperature(target_entropy=-6.0)(batch, ctx)[0])
    assert not torch.equal(Temperature()(batch, ctx)[0], Temperature(target_entropy=-5.0)(batch, ctx)[0])


def test_members_and_mistakes():
    assert member_values(torch.zeros(4, 1)).shape == (4, 1) and member_values(torch.zeros(4, 1, 3)).shape == (4, 3)
    with pytest.raises(ValueError, match="'huber'"):
        QLearning(loss="hubr")
    for objective in (Reparam, Deterministic):
        with pytest.raises(ValueError, match="did you mean 'mean'"):
            objective(over="meen")
    with pytest.raises(ValueError, match=r"SmoothedTD: clip is -0\.5: expected a number of 0 or more"):
        SmoothedTD(clip=-0.5)
    batch = transitions([0], [0], [1.0], [0], [1.0])
    ctx = context(policy=Table([[0.0]]), targets=Table([[0.0]]))
    with pytest.raises(KeyError, match="targets"):
        QLearning()(live(QLearning(), batch, ctx), ctx)


# ---------------------------------------------------------------- n steps


def chains(rewards, ends, **more):
    """Rows of several chains one after the other, each closed by a row of its own: states count up."""
    mask, reward, cont, child = [], [], [], []
    for r, end in zip(rewards, ends, strict=True):
        for x in r:
            mask, reward, cont = [*mask, True], [*reward, x], [*cont, 1.0]
            child.append(len(mask))
        mask, reward, cont, child = [*mask, False], [*reward, 0.0], [*cont, end], [*child, -1]
    n = len(mask)
    columns = {
        "context": torch.arange(n), "action": torch.zeros(n, dtype=torch.long), "cont": torch.tensor(cont),
        "reward": torch.tensor(reward)[:, None], "child": torch.tensor(child), "mask": torch.tensor(mask)[:, None],
        "logp": torch.zeros(n, 1), **more,
    }  # fmt: skip
    return Batch(columns, torch.tensor(mask).nonzero()[:, 0], stream="rl")


def test_targets_of_n_steps_by_hand():
    # rows 0..3 and a closing row 4 that ended; rows 5, 6 and a closing row 7 that was cut
    batch = chains([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0]], [0.0, 1.0])
    value = lambda ahead: ahead["context"] * 100.0  # noqa: E731
    g = 0.5
    for n, expected in {
        1: [1 + g * 100, 2 + g * 200, 4 + g * 300, 8, 16 + g * 600, 32 + g * 700],
        2: [1 + g * 2 + g**2 * 200, 2 + g * 4 + g**2 * 300, 4 + g * 8, 8, 16 + g * 32 + g**2 * 700, 32 + g * 700],
        3: [1 + 1 + 1 + g**3 * 300, 2 + 2 + 2, 4 + 4, 8, 16 + 16 + g**2 * 700, 32 + g * 700],
        9: [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8, 16 + 16 + g**2 * 700, 32 + g * 700],
    }.items():
        ahead = batch.successors(n)
        assert td_target(batch, ahead, value(ahead), g, n).tolist() == pytest.approx(expected), n
        picked = batch.take(torch.tensor([4, 0, 0]))
        ahead = picked.successors(n)
        found = td_target(picked, ahead, value(ahead), g, n).tolist()
        assert found == pytest.approx([expected[4], expected[0], expected[0]]), n


def test_targets_of_n_steps_discount_by_durations():
    batch = chains([[1.0, 2.0, 4.0]], [1.0], duration=torch.tensor([2, 1, 3, 1]))
    ahead = batch.successors(2)
    found = td_target(batch, ahead, torch.full((3,), 100.0), 0.5, 2).tolist()
    # two steps of time pass before the second reward, one more before the value
    assert found == pytest.approx([1 + 0.25 * 2 + 0.125 * 100, 2 + 0.5 * 4 + 0.5**4 * 100, 4 + 0.125 * 100])


def test_objectives_look_n_steps_ahead_and_say_how_far_off_they_are():
    q = [[float(10 * i), 0.0] for i in range(8)]
    ctx = context(policy=Table(q), target=Table(q))
    batch = chains([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0]], [0.0, 1.0])
    objective = QLearning(gamma=0.5, n=2)
    live_batch = live(objective, batch, ctx)
    _, info = objective(live_batch, ctx)
    y = [1 + 1 + 0.25 * 20, 2 + 2 + 0.25 * 30, 4 + 4, 8, 16 + 16 + 0.25 * 70, 32 + 0.5 * 70]
    assert info["target"].tolist() == pytest.approx(y)
    off = [abs(10 * i - t) for i, t in zip([0, 1, 2, 3, 5, 6], y, strict=True)]
    assert live_batch.stamps["td_error"].tolist() == pytest.approx(off)
    with pytest.raises(ValueError, match="n is 0"):
        SoftTD(n=0)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_every_objective_bootstraps_from_the_row_n_decisions_ahead(n):
    """Rewards 1, 2, 4, 8 of a chain that is cut, discount 1/2; V'(row i) is 100 i, whatever the action."""
    batch = chains([[1.0, 2.0, 4.0, 8.0]], [1.0])
    batch = batch.put({"action": torch.zeros(len(batch), 1), "live/critic/value": torch.zeros(len(batch), 1)})
    value = lambda rows: 100.0 * rows["context"].float()[:, None]  # noqa: E731
    worth = lambda rows: SimpleNamespace(value=lambda: value(rows), all=lambda: value(rows)[:, :, None])  # noqa: E731
    fresh = lambda noise: (torch.zeros(4, 1), torch.zeros(4, 1))  # noqa: E731
    acts = lambda rows: SimpleNamespace(mode=lambda: torch.zeros(4, 1), rsample=fresh)  # noqa: E731
    ctx = context(critic=worth, target=worth, policy=acts, target_policy=acts, temperature=scalar(0.2))
    expected = {
        1: [1 + 50, 2 + 100, 4 + 150, 8 + 200],
        2: [1 + 1 + 50, 2 + 2 + 75, 4 + 4 + 100, 8 + 200],
        3: [1 + 1 + 1 + 37.5, 2 + 2 + 2 + 50, 4 + 4 + 100, 8 + 200],
        9: [1 + 1 + 1 + 1 + 25, 2 + 2 + 2 + 50, 4 + 4 + 100, 8 + 200],
    }[n]
    for objective in (QLearning(0.5, role="critic", n=n), SoftTD(0.5, n=n), SmoothedTD(0.5, n=n)):
        _, info = objective(batch, ctx)
        assert info["target"].tolist() == pytest.approx(expected), type(objective).__name__


def test_rewards_that_only_the_drawn_rows_have_are_refused():
    batch = chains([[1.0, 2.0]], [0.0])
    seen = batch.put({"reward": batch["reward"] * 2})
    with pytest.raises(ValueError, match="move it to"):
        td_target(seen, seen.successors(2), torch.zeros(2), 0.9, 2)


def test_what_is_put_on_all_rows_counts_behind_the_first_too():
    """The columns of a [collect] transform: those that are stored would give 1 + 1 and so on."""
    stored = Batch(chains([[1.0, 1.0, 1.0]], [1.0]).whole)
    whole = stored.put({"reward": torch.tensor([8.0, 4.0, 2.0, 0.0])[:, None], "duration": torch.tensor([1, 2, 1, 1])})
    for batch in (whole, whole.take(torch.arange(4))):
        found = td_target(batch, batch.successors(2), torch.full((4,), 100.0), 0.5, 2)[:3]
        assert found.tolist() == pytest.approx([8 + 0.5 * 4 + 0.125 * 100, 4 + 0.25 * 2 + 0.125 * 100, 2 + 0.5 * 100])


def test_a_chain_follows_what_is_put_on_all_rows():
    """Row 1 is made one that decides nothing: the chain of row 0 ends before it."""
    stored = Batch(chains([[1.0, 1.0]], [1.0]).whole)
    whole = stored.put({"mask": torch.tensor([[True], [False], [False]])})
    for batch in (whole, whole.take(torch.arange(3))):
        assert batch.path(2)[1][0] == -1
