"""Success rates by attention: the adapter by hand, its fit, what is probed and paid for, and runs that select by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from built import CLIP, SCALED, holds, one_loss
from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.buffers.groups import Groups
from shuhari.buffers.mixture import Mixture
from shuhari.config.stage import Role
from shuhari.curricula.sequential import Sequential
from shuhari.curricula.target import Target, name_of
from shuhari.data import code
from shuhari.events import Collected
from shuhari.learners.parts import Term
from shuhari.methods.curriculum.dots.attention import Adapter, Attention
from shuhari.objectives.clip import Clip
from shuhari.ports import Predictor
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

predictor: Predictor = Attention()


def adapter(inputs: int = 6, size: int = 4) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Adapter(inputs, size).requires_grad_(False)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run_of(predictor: Attention, steps: int = 3, **more: Any) -> Any:
    models = {"policy": harness.tiny(), "embed": Role(init="policy")}
    curriculum = Target(predictor, Sequential(), of=4, pick="sample", **more)
    parts = {"policy": harness.part(clip=Term(Clip()))}
    buffer = Mixture({"fresh": Fresh(2), "replay": Groups(2)})
    collect = {"advantage": Advantage()}
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=buffer, steps=steps, curriculum=curriculum, n=8, max_new=1,
            collect=collect, models=models,
        )
    )  # fmt: skip


# ---------------------------------------------------------------- the adapter


def test_equal_scores_give_the_mean_of_the_references() -> None:
    v = torch.tensor([0.0, 0.25, 1.0])
    p = adapter()(numbers(5, 6), numbers(1, 6).expand(3, 6), v)
    torch.testing.assert_close(p, v.mean().expand(5))


def test_the_first_calibration_is_the_identity() -> None:
    """T = 1 and b = 0: what comes out is the attention's mean, worked out here with numpy's arithmetic."""
    made, x, references, v = adapter(), numbers(5, 6), numbers(3, 6, seed=1), torch.tensor([0.1, 0.5, 0.75])
    q, k = made.embed(x).numpy(), made.embed(references).numpy()
    score = q @ k.T / 4**0.5
    weight = torch.from_numpy(score).exp().numpy()
    expected = (weight * v.numpy()).sum(1) / weight.sum(1)
    torch.testing.assert_close(made(x, references, v), torch.from_numpy(expected))


def test_calibration_by_hand() -> None:
    """p = sigmoid(logit(base) / T + b), (T, b) = (softplus, tanh) of what the network says of mean and deviation."""
    made, v = adapter(), torch.tensor([0.25, 0.75])
    heard = []
    made.calibrate.register_forward_hook(lambda module, given, out: heard.append(given[0]))
    with torch.no_grad():
        made.calibrate[2].bias.copy_(torch.tensor([2.0, -0.5]))
    p = made(numbers(1, 6), numbers(1, 6).expand(2, 6), v)  # base = .5, so its logit is 0
    torch.testing.assert_close(p, torch.tensor([-0.5]).tanh().sigmoid())
    torch.testing.assert_close(heard[0], torch.tensor([[0.5, 0.25]]))
    p = made(numbers(1, 6), numbers(1, 6).expand(2, 6), torch.tensor([0.8, 0.8]))
    t = torch.tensor(2.0).exp().log1p()
    torch.testing.assert_close(p, (torch.tensor([0.8]).logit() / t - torch.tensor(0.5).tanh()).sigmoid())


def test_what_is_not_seen_does_not_count() -> None:
    made, x, references, v = adapter(), numbers(4, 6), numbers(3, 6, seed=1), torch.tensor([0.1, 0.6, 0.9])
    with torch.no_grad():
        made.calibrate[2].weight.copy_(numbers(2, 10, seed=2))
    seen = torch.tensor([[True, False, True]]).expand(4, 3)
    torch.testing.assert_close(made(x, references, v, seen), made(x, references[[0, 2]], v[[0, 2]]))


def test_a_fitted_adapter_tells_unseen_problems_apart() -> None:
    """Two kinds of problem, right in 9 of 10 and 1 of 10; the adapter at first tells them from noise hardly at all."""
    x = numbers(40, 6)
    kind = torch.arange(40) % 2
    x[:, 0] = 2.0 * kind
    fitted = Attention(fits=150, lr=1e-2, size=8)
    names = [str(i) for i in range(40)]
    fitted.state |= {"x": x, "place": {n: i for i, n in enumerate(names)}}
    rate = {n: 0.9 if int(k) else 0.1 for n, k in zip(names, kind, strict=True)}
    for first in (0, 8, 16):  # three rounds, on the first 24 problems
        probed, asked = names[first : first + 6], names[first + 6 : first + 8]
        fitted.state["rounds"].append({"probed": {n: rate[n] for n in probed}, "asked": {n: rate[n] for n in asked}})
    made = fitted._adapter()
    v = torch.tensor([rate[n] for n in names[:6]])
    before = made(x[24:], x[:6], v).detach()
    fitted._fit(made)
    after = fitted._adapter()(x[24:], x[:6], v).detach()  # the weights that the state keeps
    unseen = kind[24:].bool()
    gaps = [float(p[unseen].mean() - p[~unseen].mean()) for p in (before, after)]
    assert gaps[1] > 0.5 > 0.25 > gaps[0]


# ---------------------------------------------------------------- in a run


def test_references_are_probed_at_each_prediction_and_paid_for() -> None:
    run = run_of(Attention(references=3, n=4, role="embed"), steps=4, ahead=2)
    reports = list(harness.train(run))
    assert [r["spent/probe/tokens"] for r in reports] == [12, 12, 24, 24]  # one token a sample, every other step
    rounds = run.stage.curriculum.predictor.state["rounds"]
    assert [len(r["probed"]) for r in rounds] == [3, 3]
    assert all(0 < len(r["asked"]) <= 4 for r in rounds)
    assert all(set(r["probed"].values()) <= {0, 0.25, 0.5, 0.75, 1} for r in rounds)


def test_embeddings_are_the_mean_hidden_states_of_a_frozen_role() -> None:
    run = run_of(Attention(references=3, role="embed"), steps=2)
    run.enter_stage()
    task, ctx, state = run.ctx.task, run.ctx, run.stage.curriculum.predictor.state
    ctx.wait(run.stage.curriculum.select(2, ctx))
    assert len(state["x"]) == len(state["place"]) == 8
    model: Any = ctx.models["embed"]
    for i in (0, 5):
        p = task.problems("train")[i]
        with torch.no_grad():
            hidden = model.module.base(torch.tensor([model.encode(p.prompt).tolist()])).last_hidden_state[0]
        torch.testing.assert_close(state["x"][state["place"][name_of(p)]], hidden.mean(0), atol=1e-5, rtol=1e-4)
    before = state["x"].clone()
    run2 = run_of(Attention(references=3, role="embed"), steps=4)
    list(harness.train(run2))
    torch.testing.assert_close(run2.stage.curriculum.predictor.state["x"], before)  # while the policy has moved


def test_what_was_collected_is_learnt_from_where_it_has_an_embedding() -> None:
    heard = Attention()
    heard.state |= {"place": {str(code("t", "a")): 0}, "rounds": [{"probed": {}, "asked": {}}]}
    columns = {
        "mask": torch.ones(2, 1, dtype=torch.bool), "logp": torch.zeros(2, 1), "episode": torch.arange(2),
        "problem": torch.tensor([code("t", "a"), code("t", "b")]), "reward": torch.tensor([[1.0], [0.0]]),
    }  # fmt: skip
    heard.observe(Collected(Batch(columns)))
    assert heard.state["rounds"][0]["asked"] == {str(code("t", "a")): 1.0}


def test_a_role_that_nobody_plays_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"'embd'.*did you mean 'embed'"):
        list(harness.train(run_of(Attention(role="embd"))))


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    testing.check_resumed(lambda: run_of(Attention(references=3, role="embed"), ahead=1))


FRESH, REPLAY = (f"learners.main.buffer.buffers.{name}" for name in ("fresh", "replay"))


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "curriculum/dots",
        {
            "curriculum.pick": "sample",
            "curriculum.target": 0.5,
            "curriculum.tau": 1e-3,
            "curriculum.ahead": 8,  # mu, steps a prediction: 2 there, and 64 times as many problems a step
            "curriculum.predictor.n": 0,  # of a reference as many samples as of any group
            "n": 8,
            f"{FRESH}.size": 4,  # half of a batch
            f"{REPLAY}.size": 4,
            f"{REPLAY}.capacity": 8,  # as many groups as a batch has: 512 of 512
            f"{REPLAY}.low": 0.0,  # groups all wrong and all right are not kept
            f"{REPLAY}.high": 1.0,
            "curriculum.predictor.references": 16,  # half of the new groups between predictions: 256 of 2 x 256 there
            f"{CLIP}.objective": Clip(low=0.2, high=0.2, behaviour="behaviour"),  # over what was stored
            "collect": SCALED,
        },
    )
    one_loss(stage)
