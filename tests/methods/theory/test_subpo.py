"""SubPO: gains that sum up to the set function, and the enumerated gradient of its expectation."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.lab import demonstrations
from shuhari.methods.theory.subpo.coverage import Coverage
from shuhari.methods.theory.subpo.marginal_gains import MarginalGains
from shuhari.testing import check_transform, context, transitions
from shuhari.transforms.returns import Returns

COVERS = torch.tensor([[0.5, 0.0, 0.25], [0.0, 1.0, 0.25], [0.5, 1.0, 0.0]], dtype=torch.double)  # of three states


def walk(*paths: list[int], table: Tensor = COVERS, finished: bool = True) -> Batch:
    """Episodes that lead to these states, with what the environment tells of them."""
    told = torch.cat([torch.cat([table[path], torch.full((1, table.shape[1]), torch.nan)]) for path in paths])
    rewards = [[0.0] * len(path) for path in paths]
    return transitions(rewards, finished=finished, stream=None, columns={"covers": told})


def gains(transform: MarginalGains, batch: Batch) -> list[float]:
    out = transform(batch, context())
    found: list[float] = out["reward"].sum(1)[batch.decides].tolist()
    return found


def test_gains_by_hand_and_a_second_visit_gains_nothing() -> None:
    """State 0 covers 0.5 and 0.25, state 1 then adds its 1.0, state 2 and the second visit add nothing."""
    out = check_transform(MarginalGains(), walk([0, 1, 2, 0], [2, 2]), context())
    assert out["reward"].sum(1).tolist() == [0.75, 1.0, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0]
    assert gains(MarginalGains(additive=True), walk([0, 1, 2, 0])) == [0.75, 1.25, 1.5, 0.75]
    assert gains(MarginalGains(form="capped", cap=1.5), walk([1, 1, 1])) == [1.25, 0.75, 0.25]


@pytest.mark.parametrize("form", ["cover", "capped", "information"])
def test_gains_sum_up_to_the_set_function_and_fall(form: Any) -> None:
    """F of the whole path, written once more; and a state gains no more later than earlier (submodular)."""
    rng = torch.Generator().manual_seed(0)
    table = torch.rand(5, 3, generator=rng, dtype=torch.double)
    how = MarginalGains(form=form, cap=1.2, noise=0.7)
    path = [0, 3, 3, 1, 4]
    c = table[path]
    whole = {
        "cover": c.amax(0).sum(),
        "capped": c.sum(0).clamp(max=1.2).sum(),
        "information": torch.linalg.slogdet(torch.eye(5) + c @ c.T / 0.49)[1] / 2,  # the other side's determinant
    }[form]
    found = gains(how, walk(path, table=table))
    assert sum(found) == pytest.approx(float(whole)) and min(found) >= -1e-9
    for new in range(5):
        last = [gains(how, walk([*path[:n], new], table=table))[-1] for n in range(6)]
        assert all(later <= earlier + 1e-7 for earlier, later in pairwise(last))


def test_an_episode_goes_on_in_the_next_draw() -> None:
    path, how, found = [0, 1, 0, 2, 2, 1], MarginalGains(), []
    for piece, over in ((path[:2], False), (path[2:3], False), (path[3:], True)):
        batch = walk(piece, finished=over)
        found += gains(how, batch.put({"episode": torch.full_like(batch["episode"], 7)}))
    assert found == gains(MarginalGains(), walk(path))
    assert not len(how.state["episode"])  # it has ended
    assert gains(how, walk([0])) == [0.75]


def test_the_gradient_is_that_of_the_expected_set_function() -> None:
    """Three states, three steps, two actions: all eight episodes by hand, against autograd of E F."""
    rng = torch.Generator().manual_seed(3)
    after = torch.tensor([[1, 2], [0, 2], [2, 0]])  # state, action -> state
    logits = torch.randn(3, 3, 2, generator=rng, dtype=torch.double, requires_grad=True)  # step, state, action
    expected, estimate = torch.zeros((), dtype=torch.double), torch.zeros((), dtype=torch.double)
    for actions in product(range(2), repeat=3):
        state, logp, path = 0, [], []
        for t, a in enumerate(actions):
            logp.append(logits[t, state].log_softmax(0)[a])
            state = int(after[state, a])
            path.append(state)
        p = torch.stack(logp).sum().exp()
        expected = expected + p * COVERS[path].amax(0).sum()
        batch = MarginalGains()(walk(path), context())
        batch.stream = "rl"
        to_go = Returns(gamma=1.0)(batch, context())["return"].sum(1)[:3].double()
        estimate = estimate + p.detach() * (torch.stack(logp) * to_go).sum()
    exact, found = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (expected, estimate))
    torch.testing.assert_close(found, exact)
    assert exact.abs().max() > 0.01


def test_an_additive_function_is_plain_reinforce() -> None:
    batch = walk([0, 1, 1, 2], [2, 0, 0, 0])
    assert gains(MarginalGains(form="capped", cap=100.0), batch) == pytest.approx(
        gains(MarginalGains(form="capped", cap=100.0, additive=True), batch)
    )


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="a number of the column 'covers' is -1: expected numbers at least 0"):
        gains(MarginalGains(), walk([0], table=-torch.ones(1, 2)))
    batch = walk([0, 1])
    with pytest.raises(ValueError, match=r"is \['B'\]: expected \[B, M\]"):
        MarginalGains()(batch.put({"covers": torch.zeros(3)}), context())
    with pytest.raises(ValueError, match="drawn from a buffer: put it under"):
        MarginalGains()(batch.take(torch.arange(2)), context())


def test_the_field_pays_what_its_gains_sum_up_to() -> None:
    """The return of an episode, which is evaluated, is F of what it tells, and lanes step to the same bits."""
    from shuhari.tasks.lanes import Lanes

    apart, together = ([Coverage(side=4, horizon=6, slip=0.3, field=2) for _ in range(3)] for _ in range(2))
    for envs in (apart, together):
        for i, env in enumerate(envs):
            env.reset(seed=i)
    lanes, rng, told = Lanes(together), np.random.default_rng(0), [[] for _ in apart]
    assert apart[0].weight.sum() == pytest.approx(1.0)
    for _ in range(6):
        actions = rng.integers(5, size=3)
        seen, reward, over, _, info = lanes.act(actions)
        for i, env in enumerate(apart):
            one = env.step(int(actions[i]))
            assert one[0].tobytes() == seen[i].tobytes() and one[1:3] == (reward[i], over[i])
            assert (one[4]["covers"] == info["covers"][i]).all()
            told[i].append(one[4]["covers"])
    assert over.all()
    for i, rows in enumerate(told):
        table = torch.from_numpy(np.stack(rows))
        assert sum(gains(MarginalGains(), walk(list(range(6)), table=table))) == pytest.approx(reward[i])


def test_its_sides_differ_in_what_a_step_is_paid() -> None:
    shown = demonstrations.read("theory/subpo").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).collect["marginal_gains"] for name, arm in shown.items()}
    assert {name: x.additive for name, x in found.items()} == {"method": False, "baseline": True}
    assert load("theory/subpo").tree["transform"]["advantage"]["unit"] == "at"
