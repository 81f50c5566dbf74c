"""Credit of decisions by a model of outcomes: weights by hand, who is chosen, what best-of-N accepts, whom w blames.

Cross-entropy of the mean over a row, by hand.

OREAL as its recipe says it: what is imitated, what is unlearnt and what holds it, on the pair of one group.
"""

from __future__ import annotations

from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from arms import apart
from built import answers, demonstrated, learnt, padded, same, table
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.lab import demonstrations
from shuhari.loop.run import loop, open_run
from shuhari.methods.rlvr.oreal.oreal import Credit, balance_sides, draw_pairs
from shuhari.methods.rlvr.oreal.token_rewards import Outcome
from shuhari.models.categorical import Categorical
from shuhari.models.text.causal import CausalValue
from shuhari.needs import Need, evaluate
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.testing import context

W = Need(("credit",), "value")
NAN = float("nan")


def groups(*outcomes: list[float]) -> Batch:
    """Answers of three tokens; `advantage` is 1 on right ones and -0.5 on wrong ones."""
    rows = []
    for i, group in enumerate(outcomes):
        request = Request(Problem("t", str(i), ""), key=str(i))
        for x in group:
            step = Step.of(np.array([7], np.int32), np.array([1, 2, 3], np.int32), reward={"score": x})
            rows.append(Trajectory(request, (step,)))
    batch = pack(rows)
    reward = batch["reward/score"]
    batch = batch.put({"reward": reward})
    batch.stream = "rl"
    right = batch.outcome() > 0.5
    return batch.put({"advantage": torch.where(right, 1.0, -0.5)[:, None] * batch["mask"]})


def rows_of(batch: Batch, stream: str) -> list[int]:
    return (batch.weight(stream) != 0).any(1).nonzero().squeeze(1).tolist()


def test_weights_by_hand() -> None:
    """sigmoid(log 3) = 3/4: a right decision counts half, a wrong one nothing, and the other way round for -log 3."""
    batch = groups([1, 0, 0])
    w = torch.tensor([log(3), 0.0, -log(3)]).expand(3, 3)
    out = Credit()(batch.put({W: w}), context())
    torch.testing.assert_close(out["advantage"], torch.tensor([[0.5, 0, 0], [0, 0, -0.25], [0, 0, -0.25]]))
    assert not Credit()(batch.put({W: 0 * w}), context())["advantage"].any()  # nothing is known: KL alone is left
    half = Credit(least=0.6)(batch.put({W: w}), context())["advantage"]  # (3/4 - 0.6) / 0.4
    torch.testing.assert_close(half, torch.tensor([[0.375, 0, 0], [0, 0, -0.1875], [0, 0, -0.1875]]))
    every = Credit(least=0.0)(batch.put({W: w}), context())["advantage"]  # p itself
    torch.testing.assert_close(every[:2], torch.tensor([[0.75, 0.5, 0.25], [-0.125, -0.25, -0.375]]))
    sure = torch.tensor([60.0, -60.0, -60.0])[:, None].expand(3, 3)
    torch.testing.assert_close(Credit()(batch.put({W: sure}), context())["advantage"], batch["advantage"])


def test_weights_of_mean_one_keep_their_ratios_on_either_side() -> None:
    """Of the right answer 1/2, 0, 0 becomes 3, 0, 0; of the wrong one 0, 0, 1/2 the same, each times its advantage."""
    batch = groups([1, 0], [1, 1])
    w = torch.tensor([log(3), 0.0, -log(3)]).expand(4, 3)
    out = Credit(mean_one=True)(batch.put({W: w}), context())
    torch.testing.assert_close(out["advantage"][:2], torch.tensor([[3.0, 0, 0], [0, 0, -1.5]]))
    every = Credit(mean_one=True, least=0.0)(batch.put({W: w}), context())["advantage"]  # 3/4, 1/2, 1/4 over 1/2
    torch.testing.assert_close(every[:2], torch.tensor([[1.5, 1.0, 0.5], [-0.25, -0.5, -0.75]]))
    assert not Credit(mean_one=True)(batch.put({W: 0 * w}), context())["advantage"].any()


def test_without_a_model_the_advantage_stays() -> None:
    batch = groups([1, 0, 0])
    out = Credit(role="")(batch, context())
    assert torch.equal(out["advantage"], batch["advantage"]) and Credit(role="").needs == ()
    assert Credit().needs == (W,)


def test_the_running_mean() -> None:
    batch = groups([1, 0])
    w = torch.tensor([[log(9), -log(9), 3 * log(3)], [0.0, 0.0, 0.0]])  # running means log 9, 0, log 3
    out = Credit(running=True)(batch.put({W: w}), context())
    torch.testing.assert_close(out["advantage"][0], torch.tensor([0.8, 0.0, 0.5]))


def test_one_of_each_side_of_a_group_that_has_both() -> None:
    batch = groups([1, 0, 0, 1], [1, 1], [0, 0], [0, 1, NAN])
    batch = batch.take(torch.randperm(11, generator=torch.Generator().manual_seed(1)))  # groups that lie apart
    right, group = batch.outcome() > 0.5, batch["group"]
    for seed in range(8):
        out = Credit(role="")(batch, context(seed))
        pos, neg = rows_of(out, "pos"), rows_of(out, "neg")
        assert len(pos) == len(neg) == 2 and bool(right[pos].all()) and not right[neg].any()
        assert sorted(group[pos].tolist()) == sorted(group[neg].tolist())
        assert rows_of(out, "rl") == sorted([*pos, *neg])
        assert not batch.outcome()[rows_of(out, "credit")].isnan().any()
    mixed = groups([1, 0, 0, 0, 1], [0, 1])
    weight = Credit(role="")(mixed, context()).weight("credit")[:, 0]
    torch.testing.assert_close(weight, torch.tensor([5 / 4, 5 / 6, 5 / 6, 5 / 6, 5 / 4, 1.0, 1.0]))
    assert not Credit(role="")(groups([1, 1], [0, 0]), context()).weight("credit").any()


def test_nothing_to_choose_from() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert len(draw_pairs(none, none.bool(), torch.Generator())) == len(balance_sides(none, none.bool())) == 0


def test_what_is_accepted_keeps_the_ratios_of_the_policy() -> None:
    """Best of N: a group has an answer of either side with probability 1 - (1 - p)^N - p^N, and the right one that is
    learnt from follows pi given that it is right."""
    pi, right, N, groups_ = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([True, False, False, True]), 3, 20_000
    drawn = torch.multinomial(pi.expand(groups_, 4), N, True, generator=torch.Generator().manual_seed(0)).view(-1, 1)
    one = torch.ones(len(drawn), 1)
    columns = {"mask": one.bool(), "action": drawn, "reward": right[drawn].float(), "advantage": one}
    columns |= {"group": torch.arange(groups_).repeat_interleave(N), "episode": torch.arange(len(drawn))}
    out = Credit(role="")(Batch(columns), context(1))
    counts = torch.bincount(drawn[rows_of(out, "pos"), 0], minlength=4).double()
    assert counts.sum().item() / groups_ == pytest.approx(1 - 0.5**N - 0.5**N, abs=0.015)
    assert (counts[0] / counts.sum()).item() == pytest.approx(0.8, abs=0.015)
    assert counts[1] == counts[2] == 0


def test_the_optimum_of_reward_less_kl_keeps_the_ratios_of_the_policy() -> None:
    """Of the objectives `clip` and `divergence`, in expectation over four actions; beta = 1/2. Among right answers it
    is the policy's own ratio, 4, and against a wrong one that times e^(1 / beta)."""
    pi, right = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double(), torch.tensor([[1.0, 0.0, 0.0, 1.0]]).double()
    clip, kl = Clip(behaviour="present"), Divergence(form="exact")
    action, logits = torch.arange(4)[None], pi.log().requires_grad_()
    old = Categorical(pi.log().expand(1, 4, 4), action)
    for _ in range(400):
        new = Categorical(logits.expand(1, 4, 4), action)
        columns = {"mask": action >= 0, "advantage": right, clip.needs[0].key: new.log_prob()}
        batch = Batch({**columns, kl.needs[0].key: new.kl(old)})
        loss = (new.log_prob().exp().detach() * clip(batch, context())[0]).sum() + 0.5 * kl(batch, context())[0].mean()
        logits = (logits - torch.autograd.grad(loss, logits)[0]).detach().requires_grad_()
    best = logits.softmax(1).detach()[0]
    assert (best[0] / best[3]).item() == pytest.approx(4.0, rel=1e-3)
    assert (best[0] / best[1]).item() == pytest.approx(4 / 3 * np.exp(1 / 0.5), rel=1e-3)


def test_a_model_that_is_told_outcomes_alone_blames_the_wrong_token() -> None:
    """Words of six letters are wrong if they hold an x. The model, fitted to outcomes, drops just at the x."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = CausalValue(hidden=32, layers=1, heads=2, intermediate=32, context=16, alphabet="abcdx=", after=True)
    model.build(SimpleNamespace())
    context_, letters = model.encode("="), [int(model.encode(c)[0]) for c in "abcdx"]
    optimiser = torch.optim.Adam(model.module.parameters(), lr=3e-3)

    def words(n: int) -> Batch:
        trajectories = []
        for i in range(n):
            drawn = torch.randint(4, (6,), generator=generator)
            if i % 2:
                drawn[torch.randint(6, (1,), generator=generator)] = 4
            action = np.array([letters[d] for d in drawn.tolist()], np.int32)
            request = Request(Problem("words", str(i), ""), key=str(i))
            step = Step.of(context_, action, reward={"score": float(i % 2 == 0)})
            trajectories.append(Trajectory(request, (step,)))
        batch = pack(trajectories)
        return batch.put({"reward": batch["reward/score"]})

    fit = Outcome()
    for _ in range(60):
        batch = words(64)
        batch = batch.put(evaluate(batch, fit.needs, {"credit": model}, ["credit"]))
        loss, info = fit(batch, context())
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
    assert info["accuracy"].mean() > 0.95
    batch = words(200)
    with torch.no_grad():
        w = model(batch).value()
    wrong = (batch["action"] == letters[4]).nonzero()
    assert len(wrong) == 100 and all(bool((w[i, t] < w[i, :t]).all()) for i, t in wrong.tolist())
    usual = w[batch.outcome() == 1].mean(0)  # by place: of a mean some places may be of no account
    first = ((usual - w) > 2).int().argmax(1)
    told = [int(first[i]) == t for i, t in wrong.tolist() if usual[t] > 0]
    assert len(told) > 50 and all(told)


def run_of(**settings: Any) -> Any:
    small = {"hidden": 16, "layers": 1, "heads": 2}
    roles = {"policy", "credit"} - {path.removeprefix("models.") for path in settings.get("remove", ())}
    own = {f"models.{role}.{k}": v for role in sorted(roles) for k, v in small.items()}
    given = {**own, "task.terms": 2, "buffer.size": 3, "rollout.n": 6, "evaluate.every": 0, "evaluate.n": 2, "steps": 3}
    given |= {"stage.warm-up.steps": 40, "stage.warm-up.buffer.size": 64}
    given |= {"stage.warm-up.part.policy.optimiser.lr": 1e-2, **settings}
    return open_run(load("rlvr/oreal", settings=given))


def test_the_recipe() -> None:
    """The policy waits for the credit model, which begins at w = 0 (a loss of log 2) and learns; then it learns too."""
    run = run_of(**{"part.policy.after": 2, "part.credit.minibatches": 1, "part.credit.epochs": 1})

    def weights(role: str) -> torch.Tensor:
        return torch.cat([p.detach().flatten().clone() for p in run.ctx.models[role].module.parameters()])

    before: dict[str, torch.Tensor] = {}
    reports = []
    for report in loop(run):
        if report["stage"] == "rl":
            reports.append(report)
            if len(reports) == 1:
                assert report["credit/loss/token_rewards"] == pytest.approx(log(2)) and report["credit/rows"] >= 3 * 6
                before = {r: weights(r) for r in ("policy", "credit", "reference")}
                assert torch.equal(before["policy"], before["reference"])
            elif len(reports) == 2:
                assert "policy/rows" not in report and torch.equal(before["policy"], weights("policy"))
                assert not torch.equal(before["credit"], weights("credit"))
    assert reports[2]["policy/rows"] == 6.0  # a right one and a wrong one of three groups
    assert not torch.equal(before["policy"], weights("policy"))
    assert torch.equal(before["reference"], weights("reference"))


def test_the_first_rung_of_the_ladder() -> None:
    """REINFORCE: before the first step the ratio is 1, a right sample's loss is -1/2 and a wrong one's 1/2, of which
    all counts; on the next rung the advantages are those of leaving one out, of six here."""
    plain = demonstrations.read("rlvr/oreal").stated.without
    reshaped = {"remove": plain["remove"], "transform": {"oreal": {"role": ""}}}
    for arm, weight in ((plain, 1.0), (reshaped, 0.5)):
        now = {"part.policy.after": 0}  # where both sides of the demonstration wait for the credit model
        run = run_of(steps=1, **{k: v for k, v in arm.items() if k != "extends"}, **now)
        report = next(r for r in loop(run) if r["stage"] == "rl")
        assert run.stage.learners["main"].parts["policy"].terms["neg"].weight == weight
        found = [-report["policy/loss/pos"], report["policy/loss/neg"]]
        if weight == 1.0:
            assert found == pytest.approx([0.5, 0.5])
        else:
            assert sum(found) == pytest.approx(6 / 5)  # r - mean of the others: n / (n - 1) apart in any group


CTX = context()


def test_outcomes_of_the_mean_over_a_row():
    """Torch's own cross-entropy of the mean over the decisions, with a row that ends early."""
    need = Need(("credit",), "value", live=True)
    w = torch.tensor([[1.0, -3.0, 5.0], [2.0, 1.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    reward = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    loss, info = Outcome()(Batch({"mask": mask, need.key: w, "reward": reward}), CTX)
    p = torch.stack([w[0].mean(), w[1, :2].mean()]).sigmoid()
    want = -torch.stack([(1 - p[0]).log(), p[1].log()])
    torch.testing.assert_close(loss, want)
    grads = torch.autograd.grad(loss.sum(), w, retain_graph=True)[0], torch.autograd.grad(want.sum(), w)[0]
    torch.testing.assert_close(*grads)
    assert info["accuracy"].tolist() == [0.0, 1.0]
    assert Outcome().needs == (need,) and Outcome().couples == "row"


@pytest.mark.parametrize("right", ["a", "abcd"])
def test_the_three_terms_on_a_pair(right: str) -> None:
    """- A w+ / tokens of the right answer, + eta |A| w- / tokens of the wrong one, + beta log(pi / reference) / tokens
    of both: eta = 1/2, beta = 0.01, and of one right answer in four A is 1 and -1/3, before one of three is chosen.

    sigmoid(log 3) = 3/4, so w+ is 1/2 where the credit model says log 3, and w- where it says -log 3; else both are 0.
    The demonstration divides them by their mean on either side: 1 everywhere, and 3, 0, 0.
    """
    stage, n = demonstrated("rlvr/oreal"), len(right)
    wrong = [-log(3), log(3), 0.0]
    ratio = [[log(2)] * n, *[[-log(2), 0.0, log(3)]] * 3]  # of policy over reference
    log_prob = padded([-1.0] * n, *[[-1.0] * 3] * 3).requires_grad_()
    models = {
        "policy": table(log_prob=log_prob),
        "reference": table(log_prob=log_prob.detach() - padded(*ratio)),
        "credit": table(value=padded([log(3)] * n, wrong, wrong, wrong)),
    }
    batch = answers(stage, [right, "xyz", "xyz", "xyz"], [1, 0, 0, 0])
    (found,) = learnt(stage, batch, log_prob, **models)
    chosen = [row for row in found[1:] if any(row)]
    hold = [[0.01 * x / (n + 3) for x in row] for row in ratio]
    same([found[0]], [[-1 / n + x for x in hold[0]]])
    unlearnt = [1 / 2 * 1 / 3 * w / 3 for w in (3.0, 0.0, 0.0)]
    same(chosen, [[u + x for u, x in zip(unlearnt, hold[1], strict=True)]])


def test_where_all_are_right_nothing_is_learnt() -> None:
    stage = demonstrated("rlvr/oreal")
    log_prob = padded([-1.0], [-1.0, -1.0]).requires_grad_()
    models = {name: table(log_prob=log_prob, value=log_prob.detach()) for name in ("policy", "credit")}
    reference = table(log_prob=2 * log_prob.detach())
    (found,) = learnt(stage, answers(stage, ["a", "bc"], [1, 1]), log_prob, reference=reference, **models)
    assert found == [[0.0], [0.0, 0.0]]


def test_the_papers_numbers() -> None:
    stage = demonstrated("rlvr/oreal")
    part = stage.learners["main"].parts["policy"]
    assert stage.n == 16 and part.after == 10 and set(part.terms) == {"pos", "neg", "divergence"}
    assert part.terms["divergence"].objective == Divergence(form="k1")  # the gradient of KL(policy || reference)
    assert stage.models["reference"].init == "policy" and not stage.follows


def test_both_sides_learn_from_the_same_pairs() -> None:
    """They differ in the credit, in what is made of rewards, and in nothing else: every policy moves equally often."""
    found = apart("method", "baseline", demonstrations.read("rlvr/oreal").claim.arms)
    credit = ("models.credit", "transform.oreal", "part.credit")
    rung = {k for k in found if not k.startswith(credit)}
    assert {k for k in rung if not k.startswith("transform.advantage")} == {"part.policy.terms.neg"} and len(rung) > 1
    assert any(k.startswith("models.credit") for k in found)
