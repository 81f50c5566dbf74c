"""One objective, ten papers: each setting of the table in `clip` worked by hand on one group of three answers.

The answers have 2, 1 and 3 tokens, the outcomes 4, 1 and 1, and the importance ratios of policy over behaviour

    1.5  1.1  |  0.5  |  1.25  0.9  2.0

so that, with bounds 0.8 and 1.2, a good token is clipped and one is not, a bad token is clipped, and a bad token is
above the bound and goes free. Expected numbers are written out from the papers' equations in plain arithmetic.
"""

from math import isinf, log, sqrt
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.kernel.reduce import reduced, weights
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed
from shuhari.transforms.returns import Gae, Returns
from shuhari.transforms.shaping import KlInReward, Overlong

CTX = context()
LIVE = Need(("policy",), "log_prob", live=True).key
RATIO = [[1.5, 1.1], [0.5], [1.25, 0.9, 2.0]]
LOGP = [[-1.0, -0.5], [-2.0], [-0.25, -1.5, -0.75]]  # of the present policy
OUTCOME = [4.0, 1.0, 1.0]
INF = float("inf")


def padded(rows):
    return torch.tensor([[*r, *[0.0] * (3 - len(r))] for r in rows])


def group(**columns):
    """The three answers as a batch; behaviour is the policy's log-probability less the log of the ratio."""
    old = [[x - log(r) for x, r in zip(*rows, strict=True)] for rows in zip(LOGP, RATIO, strict=True)]
    request = Request(Problem("t", "0", ""), key="0")
    rows = []
    for logp, outcome in zip(old, OUTCOME, strict=True):
        ids = np.arange(len(logp), dtype=np.int32)
        step = Step.of(np.array([7], np.int32), ids, np.array(logp, np.float32), reward={"score": outcome})
        rows.append(Trajectory(request, (step,)))
    batch = pack(rows)
    extra = {k.replace("__", "/"): padded(v) for k, v in columns.items()}
    return batch.put({"reward": batch["reward/score"], **extra})


def measured(transforms, clip, reduce, **columns):
    """(loss, its gradient by the policy's log-probabilities, one list a row), reduced as the learner does it."""
    batch = group(**columns)
    for transform in transforms:
        batch = transform(batch, CTX)
    new = padded(LOGP).requires_grad_()
    loss, _ = clip(batch.put({LIVE: new}), CTX)
    total = reduced(loss, weights(batch["mask"].float(), batch, reduce))
    gradient = torch.autograd.grad(total, new)[0]
    assert bool((gradient[~batch["mask"]] == 0).all())
    return total.item(), [g[: len(r)].tolist() for g, r in zip(gradient, RATIO, strict=True)]


def check(got, loss, gradient):
    assert got[0] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    for row, wanted in zip(got[1], gradient, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5, abs=1e-6)


CENTRED = Advantage(scale="none")  # 4 - 2, 1 - 2, 1 - 2: advantages 2, -1, -1
SCALED = Advantage(eps=0.0)  # their deviation, over n - 1: sqrt((4 + 1 + 1) / 2) = sqrt 3
S = sqrt(3.0)


def test_reinforce():
    """-A log pi, the mean over tokens."""
    gradient = [[-2 / 6, -2 / 6], [1 / 6], [1 / 6, 1 / 6, 1 / 6]]
    got = measured([CENTRED], Clip(behaviour="present", clips="weight"), "decision")
    check(got, -(2 * (-1.0 - 0.5) - 1 * -2.0 - 1 * (-0.25 - 1.5 - 0.75)) / 6, gradient)
    got = measured([CENTRED], Clip(behaviour="present"), "decision")  # the same gradient; the value is that of -A
    check(got, -(2 * 2 - 1 - 3) / 6, gradient)
    assert Clip(behaviour="present")(group(advantage=LOGP).put({LIVE: padded(LOGP)}), CTX)[1] == {}


def test_reinforce_needs_no_behaviour():
    batch = group(advantage=[[1.0, 1.0], [1.0], [1.0, 1.0, 1.0]])
    batch = batch.put({"logp": torch.full_like(batch["logp"], float("nan")), LIVE: padded(LOGP)})
    assert bool(Clip(behaviour="present")(batch, CTX)[0].isfinite().all())
    with pytest.raises(ValueError, match="unknown"):
        Clip()(batch, CTX)


def test_rloo():
    """Equation 10: rewards less the mean of the others, 4 - 1 and 1 - 2.5, times the gradient of the summed log pi."""
    transforms = [Advantage(centre="leave-one-out", scale="none")]
    gradient = [[-3 / 3, -3 / 3], [1.5 / 3], [1.5 / 3, 1.5 / 3, 1.5 / 3]]
    loss = -(3 * (-1.0 - 0.5) - 1.5 * -2.0 - 1.5 * (-0.25 - 1.5 - 0.75)) / 3
    check(measured(transforms, Clip(behaviour="present", clips="weight"), "constant:1"), loss, gradient)
    assert measured(transforms, Clip(behaviour="present"), "constant:1")[1] == [pytest.approx(g) for g in gradient]


def test_rloo_with_kl_in_the_reward():
    """Rewards of whole answers less beta (log pi - log ref): 4 - 0.5 x 2, 1, 1 - 0.5 x -2, so 3, 1, 2."""
    columns = {
        "policy__log_prob": LOGP,
        "reference__log_prob": [[-2.0, -1.5], [-2.0], [-0.25, 0.5, -0.75]],
    }
    transforms = [KlInReward(beta=0.5), Advantage(centre="leave-one-out", scale="none")]
    got = measured(transforms, Clip(behaviour="present"), "constant:1", **columns)
    check(got, -(1.5 * 2 - 1.5 * 1 + 0 * 3) / 3, [[-0.5, -0.5], [0.5], [0, 0, 0]])


def test_ppo():
    """gamma = 1, lambda = 1/2: deltas 1, 2 | -1 | 0, 0, -1; advantages 2, 2 | -1 | -1/4, -1/2, -1."""
    columns = {"critic__value": [[1.0, 2.0], [2.0], [2.0, 2.0, 2.0]]}
    got = measured([Gae(gamma=1.0, lam=0.5)], Clip(), "decision", **columns)
    loss = -(2 * 1.2 + 2 * 1.1 - 0.8 - 1.25 / 4 - 0.9 / 2 - 2.0) / 6
    check(got, loss, [[0, -2 * 1.1 / 6], [0], [1.25 / 24, 0.9 / 12, 2 / 6]])


def test_reinforce_pp():
    """KL of each token in its reward (beta = 1/2, k1), undiscounted returns, normalised over all tokens, PPO's clip."""
    columns = {
        "policy__log_prob": LOGP,
        "reference__log_prob": [[-2.0, -0.5], [-2.0], [-0.25, -3.5, -0.75]],  # KL 1, 0 | 0 | 0, 2, 0
    }
    returns = [3.5, 4, 1, 0, 0, 1]
    a, b, c, d, e, f = ((x - mean(returns)) / stdev(returns) for x in returns)
    assert a > 0 and b > 0 and max(c, d, e, f) < 0
    transforms = [KlInReward(beta=0.5), Returns(gamma=1.0, scale="batch")]
    loss = -(1.2 * a + 1.1 * b + 0.8 * c + 1.25 * d + 0.9 * e + 2.0 * f) / 6
    gradient = [[0, -1.1 * b / 6], [0], [-1.25 * d / 6, -0.9 * e / 6, -2.0 * f / 6]]
    check(measured(transforms, Clip(), "decision", **columns), loss, gradient)


def test_grpo():
    """Each answer's mean over its tokens, then the mean over answers."""
    loss = -(2 / S * (1.2 + 1.1) / 2 - 1 / S * 0.8 - 1 / S * (1.25 + 0.9 + 2.0) / 3) / 3
    gradient = [[0, -2 / S * 1.1 / 6], [0], [1.25 / S / 9, 0.9 / S / 9, 2.0 / S / 9]]
    check(measured([SCALED], Clip(), "row"), loss, gradient)


def test_dr_grpo():
    """No deviation, and the longest possible answer, here 4 tokens, in the place of the answer's own length."""
    loss = -(2 * (1.2 + 1.1) - 0.8 - (1.25 + 0.9 + 2.0)) / (3 * 4)
    gradient = [[0, -2 * 1.1 / 12], [0], [1.25 / 12, 0.9 / 12, 2.0 / 12]]
    check(measured([CENTRED], Clip(), "constant:4"), loss, gradient)


def test_dapo():
    """Up to 3 tokens, 2 of them punished: outcomes 4 - 1/2, 1, 1 - 1; every token weighs the same; high = 0.28."""
    deviation = sqrt((2**2 + 0.5**2 + 1.5**2) / 2)
    a, b, c = 2 / deviation, -0.5 / deviation, -1.5 / deviation
    transforms = [Mixed(), Overlong(length=3, cache=2), SCALED]
    loss = -(a * (1.28 + 1.1) + b * 0.8 + c * (1.25 + 0.9 + 2.0)) / 6
    gradient = [[0, -a * 1.1 / 6], [0], [-c * 1.25 / 6, -c * 0.9 / 6, -c * 2.0 / 6]]
    check(measured(transforms, Clip(high=0.28), "decision"), loss, gradient)


GSPO = Clip(level="sequence", low=0.2, high=0.3)


def test_gspo():
    """Geometric means: 1.65 ** (1/2) = 1.28 below the bound, 0.5 clipped at 0.8, 2.25 ** (1/3) = 1.31 free."""
    s, t = 1.65**0.5, 2.25 ** (1 / 3)
    loss = -(2 / S * s - 1 / S * 0.8 - 1 / S * t) / 3
    gradient = [[-2 / S * s / 6] * 2, [0], [1 / S * t / 9] * 3]  # d s / d log pi = s / |y|
    check(measured([SCALED], GSPO, "row"), loss, gradient)
    clipped = measured([SCALED], Clip(level="sequence", low=0.2, high=0.28), "row")
    assert clipped[1][0] == [0, 0]  # the whole answer


def test_gspo_token():
    """Advantages that differ by token: the ratio of the sequence in value, the token's own in gradient."""
    s, t = 1.65**0.5, 2.25 ** (1 / 3)
    advantage = [[2.0, 1.0], [1.0], [-1.0, -3.0, 2.0]]
    got = measured([], GSPO, "row", advantage=advantage)
    loss = -((2 * s + 1 * s) / 2 + 0.5 + (-t - 3 * t + 2 * 1.3) / 3) / 3
    check(got, loss, [[-2 * s / 6, -s / 6], [-0.5 / 3], [t / 9, 3 * t / 9, 0]])


def test_cispo():
    """Weights from above only, here at 1.4: every token keeps its gradient, the clipped one too."""
    clip = Clip(clips="weight", low=INF, high=0.4)
    w = [[1.4, 1.1], [0.5], [1.25, 0.9, 1.4]]
    terms = [a / S * sum(x * y for x, y in zip(*r, strict=True)) for a, *r in zip((2, -1, -1), w, LOGP, strict=True)]
    gradient = [[-2 / S * 1.4 / 6, -2 / S * 1.1 / 6], [0.5 / S / 6], [x / S / 6 for x in w[2]]]
    check(measured([SCALED], clip, "decision"), -sum(terms) / 6, gradient)
    info = clip(SCALED(group(), CTX).put({LIVE: padded(LOGP)}), CTX)[1]
    assert info["clip_fraction"].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    both = measured([SCALED], Clip(clips="weight", low=0.2, high=0.4), "decision")  # two-sided: 0.5 becomes 0.8
    assert both[1][1] == pytest.approx([0.8 / S / 6])


def test_truncated_importance_sampling():
    """GRPO over the trainer's own score before the update, each token times min(pi_old / mu, 2)."""
    old = [[x - log(r) for x, r in zip(*rows, strict=True)] for rows in zip(LOGP, RATIO, strict=True)]
    mu = [[1.0, 4.0], [0.5], [1.0, 1.0, 3.0]]  # pi_old over what the sampler says
    sampler = [[x - log(r) for x, r in zip(*rows, strict=True)] for rows in zip(old, mu, strict=True)]
    columns = {"policy__log_prob": old, "logp": sampler}
    clip = Clip(behaviour="old", truncate=2.0)
    loss = -(2 / S * (1.2 + 2 * 1.1) / 2 - 1 / S * 0.5 * 0.8 - 1 / S * (1.25 + 0.9 + 2 * 2.0) / 3) / 3
    gradient = [[0, -2 / S * 2 * 1.1 / 6], [0], [1.25 / S / 9, 0.9 / S / 9, 4.0 / S / 9]]
    check(measured([SCALED], clip, "row", **columns), loss, gradient)
    info = clip(SCALED(group(**columns), CTX).put({LIVE: padded(LOGP)}), CTX)[1]
    assert info["truncated"].tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]
    kl = [[0, 4 - 1 - log(4)], [0.5 - 1 - log(0.5)], [0, 0, 3 - 1 - log(3)]]
    torch.testing.assert_close(info["sampler_kl"], padded(kl))
    whole = measured([SCALED], Clip(behaviour="old", truncate=INF), "row", **columns)
    assert whole[1][0] == pytest.approx([0, -2 / S * 4 * 1.1 / 6]) and whole[1][2][2] == pytest.approx(6.0 / S / 9)
    drop = measured([SCALED], Clip(behaviour="old", truncate=2.0, beyond="drop"), "row", **columns)
    loss = -(2 / S * 1.2 / 2 - 1 / S * 0.5 * 0.8 - 1 / S * (1.25 + 0.9) / 3) / 3  # those at 4 and 3 weigh nothing
    check(drop, loss, [[0, 0], [0], [1.25 / S / 9, 0.9 / S / 9, 0]])
    off = measured([SCALED], Clip(behaviour="old"), "row", **columns)
    check(off, *measured([SCALED], Clip(), "row"))


def test_an_untruncated_weight_makes_the_surrogate_exact_under_another_sampler():
    """Expectation over mu of (pi_old / mu) (pi / pi_old) A has the gradient of the expected reward under pi."""
    logits, reward = torch.tensor([0.3, -0.7, 1.1]), torch.tensor([1.0, -2.0, 0.5])
    old, mu = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.2, 0.5, 0.3])
    new = logits.clone().requires_grad_()
    request = Request(Problem("t", "0", ""), key="0")
    steps = [Step.of(np.array([7], np.int32), np.array([i], np.int32), np.zeros(1, np.float32)) for i in range(3)]
    batch = pack([Trajectory(request, (s,)) for s in steps]).put({"logp": mu.log()[:, None]})
    batch = batch.put({"policy/log_prob": old.log()[:, None], "advantage": reward[:, None]})
    clip = Clip(low=INF, high=INF, behaviour="old", truncate=INF)
    loss, _ = clip(batch.put({LIVE: new.log_softmax(0)[:, None]}), CTX)
    got = torch.autograd.grad(-(mu * loss[:, 0]).sum(), new)[0]
    pi = logits.softmax(0)
    torch.testing.assert_close(got, pi * (reward - (pi * reward).sum()))


# --------------------------------------------------------------------------------------- the recipes say the same


def stage(name):
    return build_stage(load(f"baselines/{name}").stages[-1])


@pytest.mark.parametrize(
    ("name", "clip", "reduce", "collect", "transforms"),
    [
        ("reinforce", Clip(behaviour="present"), "decision", [CENTRED], []),
        (
            "rloo",
            Clip(behaviour="present"),
            "constant:1",
            [KlInReward(beta=0.03), Advantage(centre="leave-one-out", scale="none")],
            [],
        ),
        ("ppo", Clip(), "decision", [], [Gae(gamma=1.0, lam=0.95, scale="batch")]),
        ("reinforce_pp", Clip(), "decision", [], [KlInReward(beta=0.01), Returns(gamma=1.0, scale="batch")]),
        ("grpo", Clip(), "row", [Advantage()], []),
        ("dr_grpo", Clip(), "constant:8", [CENTRED], []),
        ("dapo", Clip(high=0.28), "decision", [Mixed(), Overlong(length=8, cache=2), Advantage()], []),
        ("gspo", Clip(level="sequence", low=3e-4, high=4e-4), "row", [Advantage()], []),
        ("cispo", Clip(clips="weight", low=INF, high=4.0), "decision", [Advantage()], []),
    ],
)
def test_the_recipes_are_these_settings(name, clip, reduce, collect, transforms):
    made = stage(name)
    learner = made.learners["main"]
    [term] = learner.parts["policy"].terms.values()
    assert (term.objective, term.reduce, term.stream, term.weight) == (clip, reduce, "rl", 1.0)
    assert list(made.collect.values()) == collect and list(learner.transforms.values()) == transforms
    assert isinf(clip.low) == (name == "cispo")
    assert made.sampling.max_new == 8 and made.n * learner.buffer.size == 512
    assert learner.parts["policy"].minibatches == (1 if clip.behaviour == "present" else 2)
    assert ("reference" in made.models) == (name in ("rloo", "reinforce_pp"))
    assert "reference" not in build_stage(load(f"baselines/{name}").stages[0]).models
