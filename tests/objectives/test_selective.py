"""Selective losses by hand: what is chosen, what its loss and gradient are, and the entropy law by enumeration."""


import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.data import Ramp
from shuhari.learners.loss import Loss
from shuhari.loop.run import open_run
from shuhari.models.categorical import Categorical
from shuhari.needs import Need, gather
from shuhari.objectives.clip import Clip
from shuhari.objectives.selective import ClipCov, KlCov, LpReg, MinP, choose_highest, count_share, covariance
from shuhari.testing import context
from shuhari.transforms import apply

LIVE = Need(("policy",), "log_prob", live=True)
INF = float("inf")
FREE = Clip(INF, INF)


CTX = context(count=5)


def batch(new, old, advantage, mask=None, **columns):
    mask = torch.ones(new.shape, dtype=torch.bool) if mask is None else mask
    return Batch({"mask": mask, "logp": old, "advantage": advantage, LIVE.key: new, **columns})


def column(*x):
    return torch.tensor(x)[:, None]


def noisy(rows=40, width=5, seed=0):
    """Log-probabilities, behaviour a little away from them, advantages alike along a row, and a ragged mask."""
    g = torch.Generator().manual_seed(seed)
    new = -torch.rand(rows, width, generator=g) * 3
    old = new + 0.3 * torch.randn(rows, width, generator=g)
    mask = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g)
    return new, old, torch.randn(rows, 1, generator=g).expand(rows, width) * mask, mask


def both(objective, new, *rest, ctx=CTX, **columns):
    """(loss, gradient by the log-probabilities, info) of the sum over the decisions."""
    leaf = new.clone().requires_grad_()
    data = batch(leaf, *rest, **columns)
    loss, info = objective(data, ctx)
    total = torch.where(data["mask"], loss, 0.0).sum()
    return loss.detach(), torch.autograd.grad(total, leaf)[0], info


def same(a, b):
    torch.testing.assert_close(a[0], b[0])
    torch.testing.assert_close(a[1], b[1])


# ------------------------------------------------------------------------------------ covariance


def test_covariance_by_hand():
    mask = torch.tensor([[True, False], [True, False]])
    new = torch.tensor([[0.0, 9.0], [-2.0, 9.0]], requires_grad=True)
    found = covariance(new, torch.tensor([[1.0, 7.0], [-1.0, 7.0]]), mask)
    assert found.tolist() == [[1.0, 0.0], [1.0, 0.0]] and not found.requires_grad


def test_covariance_is_over_the_whole_batch_and_its_mean_is_the_covariance():
    new, _, a, mask = noisy()
    found = covariance(new, a, mask)
    wanted = torch.cov(torch.stack([new[mask], a[mask]]), correction=0)[0, 1]
    torch.testing.assert_close(found[mask].mean(), wanted)


PI = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
DRAWN = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])[:, None]  # eight decisions: every action as often as it is likely


def entropy(z):
    return Categorical(z.view(1, 1, -1), torch.zeros(1, 1, dtype=torch.long)).entropy()


def test_the_law_of_entropy():
    """A step of the policy gradient, by `clip` over all actions of a tabular softmax, takes its entropy down by
    eta Cov_pi(log pi, pi A), to first order in eta; the covariance is the mean of `covariance`."""
    logits = PI.log().requires_grad_()
    a = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    a = a - (PI * a).sum()
    new = Categorical(logits.expand(8, 1, 4), DRAWN).log_prob()
    loss, _ = Clip()(batch(new, new.detach(), a[DRAWN]), CTX)
    (slope,) = torch.autograd.grad(loss.mean(), logits)
    z = logits.detach()
    cov = covariance(new, (PI * a)[DRAWN], torch.ones(8, 1, dtype=torch.bool)).mean()
    ratios = [float((entropy(z - eta * slope) - entropy(z)) / (-eta * cov)) for eta in (1e-1, 1e-3, 1e-5)]
    assert abs(ratios[0] - 1) > abs(ratios[1] - 1) > abs(ratios[2] - 1) and ratios[2] == pytest.approx(1, abs=1e-4)


def test_the_covariance_of_decisions_tells_where_entropy_goes():
    """A step of natural policy gradient (logits + eta A) takes the entropy down by eta times the mean of `covariance`
    over decisions that come as often as they are likely."""
    a = torch.tensor([0.4, -1.0, 2.0, 0.1], dtype=torch.float64)
    cov = covariance(PI.log()[DRAWN], a[DRAWN], torch.ones(8, 1, dtype=torch.bool)).mean()
    eta = 1e-6
    change = float(entropy(PI.log() + eta * a) - entropy(PI.log()))
    assert change == pytest.approx(-eta * float(cov), rel=1e-4)


# ------------------------------------------------------------------------------------ Clip-Cov


@pytest.mark.parametrize("settings", [{"least": 50.0, "most": 60.0, "fraction": 0.5}, {"fraction": 0.0, "least": -INF}])
def test_clip_cov_without_candidates_is_the_surrogate(settings):
    data = noisy()
    same(both(ClipCov(low=0.2, high=0.2, **settings), *data), both(Clip(), *data))


def test_clip_cov_drops_the_loss_of_so_many_of_the_band_and_no_other():
    new, old, a, mask = noisy()
    low, high, least, most = 0.2, 0.2, 0.2, 1.5
    surrogate = both(Clip(low, high), new, old, a, mask)
    cov = covariance(new, a, mask)
    band = mask & (cov > least) & (cov < most) & (surrogate[2]["clip_fraction"] == 0)
    n = int(0.05 * int(mask.sum()))
    assert 1 < n < int(band.sum())  # there is something to draw
    seen = set()
    for seed in range(20):
        drop = ClipCov(0.05, least, most, low, high)
        loss, gradient, info = both(drop, new, old, a, mask, ctx=context(seed))
        chosen = info["chosen"].bool()
        assert int(chosen.sum()) == n and bool((band | ~chosen).all())
        torch.testing.assert_close(info["candidates"].bool(), band)
        torch.testing.assert_close(loss, surrogate[0].masked_fill(chosen, 0.0))
        torch.testing.assert_close(gradient, surrogate[1].masked_fill(chosen, 0.0))
        again = both(drop, new, old, a, mask, ctx=context(seed))[2]["chosen"].bool()
        assert torch.equal(chosen, again)  # the same stream, the same choice
        seen |= set(chosen.flatten().nonzero().flatten().tolist())
    assert seen == set(band.flatten().nonzero().flatten().tolist())  # drawn, not ranked: each comes up


def test_clip_cov_takes_one_at_least_and_all_where_there_are_few():
    new, old = column(0.0, -2.0), column(0.0, -2.0)
    for fraction, chosen in ((1e-9, 1), (1.0, 2)):
        info = ClipCov(fraction, 0.5, 5.0)(batch(new, old, column(1.0, -1.0)), CTX)[1]  # covariances 1 and 1
        assert int(info["chosen"].sum()) == chosen


def test_clip_cov_leaves_what_is_clipped_already():
    new, old = column(0.0, -2.0), column(-1.0, -2.0)  # ratios e and 1; covariances 1 and 1
    info = ClipCov(1.0, 0.5, 5.0, 0.2, 0.2)(batch(new, old, column(1.0, -1.0)), CTX)[1]
    assert info["chosen"].flatten().tolist() == [0, 1] and info["clip_fraction"].flatten().tolist() == [1, 0]


def test_the_band_is_open():
    data = batch(column(0.0, -2.0), column(0.0, -2.0), column(1.0, -1.0))
    for least, most in ((1.0, 5.0), (0.0, 1.0)):
        assert not ClipCov(1.0, least, most)(data, CTX)[1]["chosen"].any()


# ------------------------------------------------------------------------------------ KL-Cov


def test_kl_cov_of_no_decision_is_importance_weighted_policy_gradient():
    data = noisy()
    same(both(KlCov(fraction=0.0), *data), both(FREE, *data))
    same(both(KlCov(fraction=0.3, beta=0.0), *data), both(FREE, *data))


def test_kl_cov_penalises_the_greatest_covariances():
    new, old, a, mask = noisy()
    free = both(FREE, new, old, a, mask)
    loss, gradient, info = both(KlCov(0.1, beta=0.7), new, old, a, mask)
    n, cov = int(0.1 * int(mask.sum())), covariance(new, a, mask)
    chosen = info["chosen"].bool()
    assert n > 3 and int(chosen.sum()) == n and cov[chosen].min() >= cov[mask & ~chosen].max()
    torch.testing.assert_close(loss, free[0] + 0.7 * (new - old).abs() * chosen)
    torch.testing.assert_close(gradient, free[1] + 0.7 * (new - old).sign() * chosen)


def test_kl_cov_does_nothing_at_the_first_step():
    new, _, a, mask = noisy()
    same(both(KlCov(0.5, beta=3.0), new, new, a, mask), both(FREE, new, new, a, mask))


# ------------------------------------------------------------------------------------ Lp-Reg

PROXY = LpReg().needs[1]


def proxied(p, kappa=0.02):
    """The functional on one distribution: the log-probability of each action under its proxy."""
    logits = torch.tensor(p).log().expand(len(p), len(p))
    actions = torch.arange(len(p))
    return MinP(kappa)((Categorical(logits, actions),), actions, lambda name: actions)


def test_the_proxy_by_hand():
    found = proxied([0.6, 0.39, 0.01])
    assert found[:2].exp().tolist() == pytest.approx([0.6 / 0.99, 0.39 / 0.99])
    assert found[2] < -1e3 and bool(found.isfinite().all())  # 0.01 < 0.02 x 0.6
    assert proxied([0.6, 0.388, 0.012]).exp().tolist() == pytest.approx([0.6, 0.388, 0.012], abs=1e-6)  # at the bound
    assert proxied([0.7, 0.2, 0.1], kappa=1.0).exp().tolist() == pytest.approx([1, 0, 0])


def test_the_proxy_is_scored_once_without_gradient():
    logits = torch.randn(3, 2, 4, requires_grad=True)
    actions = torch.zeros(3, 2, dtype=torch.long)

    class Model:
        module = torch.nn.Identity()

        def __call__(self, seen):
            return Categorical(logits, actions)

    data = Batch({"mask": torch.ones(3, 2, dtype=torch.bool), "logp": torch.zeros(3, 2), "action": actions})
    out = gather(data, [PROXY], {"policy": Model()})[PROXY]
    p = logits.detach().softmax(-1)
    kept = torch.where(p >= 0.02 * p.amax(-1, keepdim=True), p, 0.0)
    torch.testing.assert_close(out.exp(), kept[..., 0] / kept.sum(-1))
    assert not out.requires_grad and not PROXY.live


def lp(new, old, a, mask, proxy, **settings):
    return both(LpReg(**settings), new, old, a, mask, **{PROXY.key: proxy})


@pytest.mark.parametrize("settings", [{"fraction": 0.0}, {"fraction": 0.4, "beta": 0.0, "low": INF, "high": INF}])
def test_lp_reg_without_a_share_or_a_pull_is_the_surrogate(settings):
    new, old, a, mask = noisy()
    bounds = {k: settings.get(k, v) for k, v in (("low", 1.0), ("high", 9.0))}
    same(lp(new, old, a, mask, new + 0.1, **settings), both(Clip(**bounds), new, old, a, mask))


def test_lp_reg_looks_at_the_unlikeliest_of_bad_answers_only():
    new, old, a, mask = noisy()
    proxy = new + torch.where(torch.arange(5) % 2 == 0, 0.2, -0.2)  # every other decision lost nothing to the filter
    loss, gradient, info = lp(new, old, a, mask, proxy, fraction=0.3, beta=0.5)
    bad = (mask & (a < 0)).flatten().nonzero().flatten()
    n = int(0.3 * len(bad))
    lowest = bad[new.flatten()[bad].argsort()[:n]]
    looked = torch.zeros(new.numel(), dtype=torch.bool).index_fill(0, lowest, True).view_as(new)
    wanted = looked & (proxy > new)
    assert 1 < int(wanted.sum()) < n and torch.equal(info["chosen"].bool(), wanted)
    ratio, d = (new - old).exp(), proxy - new
    surrogate = both(Clip(1.0, 9.0), new, old, a, mask)
    torch.testing.assert_close(loss, torch.where(wanted, -a * ratio + 0.5 * (d.exp() - d - 1), surrogate[0]))
    torch.testing.assert_close(gradient, torch.where(wanted, -a * ratio + 0.5 * (1 - d.exp()), surrogate[1]))


def test_what_the_filter_took_is_never_pulled():
    new, a = column(-4.6, -0.9, -0.5, -0.6), column(-1.0, -1.0, -1.0, -1.0)
    mask = torch.ones(4, 1, dtype=torch.bool)
    noise = column(-1e4, -0.8, -0.4, -0.5)
    loss, gradient, info = lp(new, new, a, mask, noise, fraction=1.0)
    assert info["chosen"].flatten().tolist() == [0, 1, 1, 1] and bool(gradient.isfinite().all())
    assert float(loss[0]) == 1.0 and float(gradient[0]) == 1.0  # plain policy gradient


def test_the_pull_by_hand():
    """p = (.6, .39, .01): the second action has .39 / .99 in the proxy, and k3 of it is 5.07e-5."""
    new = torch.full((2, 1), 0.39).log()
    proxy = torch.full((2, 1), 0.39 / 0.99).log()
    _, _, info = lp(new, new, -torch.ones(2, 1), torch.ones(2, 1, dtype=torch.bool), proxy, fraction=1.0)
    assert info["pull"].flatten().tolist() == pytest.approx([5.07e-5] * 2, rel=5e-3)


def test_one_decision_or_none_is_nobody():
    new, mask = column(-1.0, -2.0, -3.0), torch.ones(3, 1, dtype=torch.bool)
    for fraction, chosen in ((0.5, 0), (0.67, 2), (1.0, 3)):  # of three: 1, 2, 3
        info = lp(new, new, -torch.ones(3, 1), mask, new + 0.1, fraction=fraction)[2]
        assert int(info["chosen"].sum()) == chosen


# ------------------------------------------------------------------------------------ shared


def test_choosing():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    score = torch.tensor([[1.0, 3.0, 9.0], [2.0, 9.0, 9.0]])
    assert choose_highest(score, mask, 2).tolist() == [[False, True, False], [True, False, False]]
    assert int(choose_highest(score, mask, 9).sum()) == 3 and not choose_highest(score, mask, 0).any()
    assert [count_share(0.5, mask), count_share(0.1, mask)] == [1, 0]
    assert [count_share(0.1, mask, at_least=1), count_share(0.0, mask, at_least=1)] == [1, 0]


@pytest.mark.parametrize("kind", [ClipCov, KlCov, LpReg])
def test_the_rest_of_the_port(kind):
    objective = kind()
    assert objective.couples == "batch" and objective.needs[0] == LIVE
    assert kind(role="student").needs[0].roles == ("student",)
    new, old, a, mask = noisy()
    ramp, plain = (
        both(kind(fraction=f), new, old, a, mask, **{PROXY.key: new + 0.1}) for f in (Ramp(0.0, 0.4, over=10), 0.2)
    )
    same(ramp, plain)  # at 5 of 10


def test_each_filter_has_a_column_of_its_own():
    assert LpReg(kappa=0.1).needs[1].key != PROXY.key


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov", "lp_reg"])
def test_micro_batches_change_neither_choice_nor_gradient(method):
    """In the run of a recipe, with a policy that has moved since it was sampled from."""
    term = f"part.policy.terms.{method}"
    small = ['remove=["stage.warm-up"]', "rollout.n=4", "buffer.size=4"]
    small += [f"models.policy.{k}" for k in ("hidden=16", "layers=1", "heads=2")]
    found = []
    for tokens in (0, 30):
        more = [f"{term}.fraction=0.2", 'remove=["evaluate"]', f"micro_batch={tokens}"]
        more += [f"{term}.least=0.0"] if method == "clip_cov" else []
        run = open_run(load(f"rlvr/{method}", [*small, *more]))
        run.enter_stage()
        part = run.stage.learners["main"].parts["policy"]
        batch = run.collect(run.wanted())
        reward = torch.arange(len(batch)).remainder(2.0)[:, None] * batch["mask"]
        batch = batch.put({"reward": reward, "weight/rl": batch["mask"].float()})
        batch = gather(apply(run.stage.collect.values(), batch, run.ctx), part.needs, run.ctx.models)
        module = run.ctx.models["policy"].module
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        loss = Loss(batch, part, "policy", run.ctx, list(module.parameters()), tokens or None)
        info = loss.backward()
        found.append((info, torch.cat([p.grad.flatten() for p in module.parameters()]), len(loss.pieces)))
    (whole, a, one), (cut, b, several) = found
    assert one == 1 and several > 3 and whole["chosen"] > 0.01
    assert cut == pytest.approx(whole, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
