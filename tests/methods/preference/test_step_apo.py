"""Step-APO: the loss and its pairs by hand, backups and selection by hand, and whole searches of a scripted policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import exp
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.methods.preference.step_apo.plan_search import PlanSearch, find_q
from shuhari.methods.preference.step_apo.sibling_pairs import SiblingPairs
from shuhari.needs import Need, Trace
from shuhari.objectives.preference import Preference
from shuhari.rollouts.tree import Node, Tree, back_up_mean
from shuhari.testing import check_transform, context

LIVE, FIRST = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")
END = 9
Said = tuple[int, ...]  # token ids of the answer so far


# ---------------------------------------------------------------- pairs and their loss


def make_tree(*values: float | None, last: tuple[float, ...] = ()) -> Batch:
    """One state and the steps taken in it, with their Q, two decisions each; then two more below the first."""

    def step(i: int, q: float | None, *context: int, parent: int | None = None) -> Step:
        known = {"q": np.nan if q is None else q, "v": 0.1, "last": last[i] if i < len(last) else 0.0, "right": i == 1}
        info = {name: np.full(2, x, np.float32) for name, x in known.items()}
        ids = np.array(context, np.int32), np.array([i, i + 1], np.int32)
        return Step.of(*ids, np.zeros(2, np.float32), parent=parent, info=info)

    steps = [step(i, q, 9) for i, q in enumerate(values)]
    steps += [step(i, values[0], 9, 0, 1, parent=0) for i in (7, 8)]
    batch = pack([Trajectory(Request(Problem("t", "p", None), key="g"), tuple(steps))])
    batch.stream = "rl"
    return batch


def link(
    *values: float | None, last: tuple[float, ...] = (), factor: float = 0.3, margin: float = 1.0
) -> list[tuple[float, ...]]:
    found = check_transform(SiblingPairs(margin, factor), make_tree(*values, last=last), context())
    index, columns = found.links["pairs"]
    return [(*rows, round(m, 5)) for rows, m in zip(index.tolist(), columns["margin"].tolist(), strict=True)]


def lose(gap: float, better: float, worse: float, margin: float = 1.0) -> Tensor:
    """The loss of one pair whose log-ratios differ by `gap`, and minus its slope along beta times the gap."""
    batch = SiblingPairs(margin=margin)(make_tree(better, worse), context())
    live = torch.zeros_like(batch["logp"])
    live[0] = gap / 2  # two tokens
    live.requires_grad_()
    batch = batch.put({LIVE.key: live, FIRST.key: torch.zeros_like(batch["logp"])})
    (value,) = Preference(beta=0.5)(batch, context(count=1))[0]
    (grad,) = torch.autograd.grad(value, live)
    return torch.stack([value.detach(), -grad[0, 0] / 0.5])


def test_the_loss_of_a_pair_by_hand() -> None:
    """Log-ratios 2 apart, beta 0.5, Q 0.8 and -0.4: logit 1 - 1.2 = -0.2, loss 0.79814, slope sigmoid(0.2)."""
    torch.testing.assert_close(lose(2.0, 0.8, -0.4), torch.tensor([0.79814, 0.54983]), atol=1e-5, rtol=0)
    assert lose(2.0, 0.8, -0.4, margin=0.0)[1].item() == pytest.approx(0.26894, abs=1e-5)  # step-level DPO
    shifted = lose(2.0, 0.8 - 0.3, -0.4 - 0.3)  # V of the state cancels
    torch.testing.assert_close(shifted, lose(2.0, 0.8, -0.4))


def test_pairs_are_siblings_of_opposite_sign() -> None:
    assert link(0.2, 0.5) == []
    assert link(0.2, -0.5, None, -0.1, 0.4) == [(0, 1, 0.7), (0, 3, 0.3), (4, 1, 0.9), (4, 3, 0.5)]
    # of last steps the best and the worst only, their Q times 0.3; they do not pair with steps that go on
    assert link(0.2, -1.0, 1.0, -0.5, 0.5, last=(0, 1, 1, 1, 1)) == [(2, 1, 0.6)]
    assert link(1.0, -1.0, last=(1, 1), factor=1.0) == [(0, 1, 2.0)]
    assert link(0.2, -0.5, margin=0.0) == [(0, 1, 0.0)]


def test_unpaired_steps_have_no_weight_and_each_state_has_one_value() -> None:
    out = SiblingPairs()(make_tree(0.2, -0.5, None), context())
    assert out["weight/rl"].tolist() == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]]
    assert out["weight/value"].tolist() == [[1, 0], [0, 0], [0, 0], [1, 0], [0, 0]]  # the prompt, and below the first
    assert out["weight/right"].tolist() == [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]]


# ---------------------------------------------------------------- search


def trace(*ids: int, logp: float = -1.0, ended: bool | None = None) -> Trace:
    info = {"ended": ids[-1] == END if ended is None else ended}
    return Trace(np.array(ids, np.int32), np.full(len(ids), logp, np.float32), 3, info)


class Script:
    """A policy that says by context what is written down, and a value model that says `values` of the text so far."""

    def __init__(self, steps: Mapping[Said, Sequence[Trace]], values: Mapping[Said, float]) -> None:
        self.steps, self.values = steps, values
        self.asked: list[tuple[Said, Sampling, int]] = []

    async def sample(self, role: str, context: Any, sampling: Sampling, n: int, *, key: Any) -> list[Trace]:
        said = tuple(context.tolist()[1:])
        self.asked.append((said, sampling, n))
        return list(self.steps[said][:n])

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> dict[str, Any]:
        assert (role, list(names)) == ("critic", ["value"])
        return {"value": np.array([self.values[tuple(context.tolist()[1:])], 99.0][: len(action)])}


def search(engine: Script, scores: Mapping[str, float | None], max_new: int = 4, **settings: Any) -> Trajectory:
    """The tree; an answer's score by its text, which has a digit for each token and a line break for 8."""

    def decode(ids: Any) -> str:
        return "".join("\n" if i == 8 else str(int(i)) for i in ids)

    def grade(problem: Problem, steps: Sequence[Any]) -> Any:
        score = scores["".join(decode(s.action) for s in steps)]
        return None if score is None else {"score": score}

    task = SimpleNamespace(environment=lambda problem: None, grade=grade)
    model = SimpleNamespace(encode=lambda text: np.array([0], np.int32), decode=decode)
    ctx = testing.context(engine=engine, task=task, models={"policy": model, "critic": model})  # type: ignore[arg-type]
    request = Request(Problem("t", "p", "x"), 1, Sampling(max_new=max_new), key="p#0")
    (found,) = asyncio.run(PlanSearch(**settings).group(request, ctx))
    return found


def test_mean_backup_and_selection_by_hand() -> None:
    tree = Tree(Request(Problem("t", "p", None)), np.array([5], np.int32))
    a, b = tree.add(tree.nodes[0], [trace(0, ended=False), trace(1, ended=False)])
    for node, v in ((a, 0.5), (b, -1.0), (a, 0.0)):
        back_up_mean(node, v)
    assert [find_q(a), find_q(b), find_q(tree.nodes[0])] == pytest.approx([0.25, -1.0, -1 / 6])
    assert find_q(Node(0)) is None
    assert PlanSearch().select(tree) is a  # 0.25 + sqrt(3) / (3 e) against -1 + sqrt(3) / (2 e)
    assert PlanSearch(explore=20.0).select(tree) is b
    assert 0.25 + 20 * 3**0.5 / (3 * exp(1)) < -1 + 20 * 3**0.5 / (2 * exp(1))
    a.ended = True
    assert PlanSearch().select(tree) is b  # a complete answer is not selected again
    b.ended = True
    assert PlanSearch().select(tree) is None


def test_a_whole_search_by_hand() -> None:
    """Two different steps of three samples; below each one more step. Values of the first: 0.4 and, held, -1."""
    steps = {
        (): [trace(1, 2, ended=False), trace(1, 2, ended=False), trace(3, 4, ended=False)],
        (1, 2): [trace(5, END), trace(6, END)],
        (3, 4): [trace(7, END), trace(7, END)],
    }
    engine = Script(steps, {(1, 2): 0.4, (3, 4): -7.0})
    found = search(engine, {"1259": 1.0, "1269": 0.0, "3479": None}, first=3, width=2, chunk=2)
    assert [said for said, _, _ in engine.asked] == [(), (1, 2), (3, 4)] and [n for *_, n in engine.asked] == [3, 2, 2]
    batch = pack([found])
    assert batch["parent"].tolist() == [-1, -1, 0, 0, 1]  # the only child of the second is a row of its own
    q = [0.2, -1.0, 1.0, -1.0, float("nan")]  # of the first the mean of twice 0.4, 1 and -1
    np.testing.assert_allclose(batch["q"][:, 0], q, rtol=1e-6)
    root = (2 * 0.4 - 1.0 + 1.0 - 1.0) / 5
    np.testing.assert_allclose(batch["v"][:, 0], [root, root, 0.2, 0.2, -1.0], rtol=1e-6)
    assert batch["last"][:, 0].tolist() == [0, 0, 1, 1, 1] and batch["right"][:, 0].tolist() == [2, 0, 1, 0, 0]
    batch.stream = "rl"
    index, columns = SiblingPairs()(batch, context()).links["pairs"]
    assert index.tolist() == [[0, 1], [2, 3]]
    torch.testing.assert_close(columns["margin"], torch.tensor([1.2, 0.6]))


def test_a_step_ends_at_the_delimiter_and_an_answer_after_its_longest() -> None:
    steps = {(): [trace(1, 8, ended=True), trace(2, END)], (1, 8): [trace(3, 4, ended=False), trace(END)]}
    engine = Script(steps, {(1, 8): 0.0})
    found = search(engine, {"29": 0.0, "1\n34": 0.0, "1\n9": 1.0}, first=2, width=2, delimiter="\n")
    assert [(s.stop, s.max_new) for _, s, _ in engine.asked] == [(("\n",), 4), (("\n",), 2)]
    assert pack([found])["last"][:, 0].tolist() == [0, 1, 1, 1]


def test_iterations_are_a_limit_and_a_game_is_refused() -> None:
    engine = Script({(): [trace(1, ended=False)]}, {(1,): 0.5})
    assert len(search(engine, {}, iterations=1, chunk=1).steps) == 1
    played = testing.context(task=SimpleNamespace(environment=lambda problem: object()))  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="is played"):
        asyncio.run(PlanSearch().group(Request(Problem("t", "p", "x")), played))


def test_the_recipe_has_these_settings() -> None:
    first, last = load("preference/step_apo").stages[-2:]
    terms: Any = last["part"]["policy"]["terms"]
    assert {name: (t["use"], t["beta"]) for name, t in terms.items()} == {"loss": ("preference", 0.5)}
    assert last["rollout"]["role"] == "reference" and last["transform"]["sibling_pairs"] == {}
    assert first["part"]["policy"]["terms"]["loss"]["stream"] == "right"
    assert [stage["part"]["critic"]["terms"]["value"]["target"] for stage in (first, last)] == ["v", "v"]
