"""Search in one group: backups and choices by hand, whole searches against an engine whose answers are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import log, sqrt, tanh
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari import testing
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Sampling, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.loop.run import train
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace
from shuhari.rollouts.tree import Node, Tree, TreeSearch, back_up_mean, back_up_signed, score, uct

END = 9
Chunk = tuple[tuple[int, ...], float]  # token ids, and the log-probability of each


def trace(*ids: int, logp: float = -1.0) -> Trace:
    info = {"ended": ids[-1] == END, "text": "".join(map(str, ids))}
    return Trace(np.array(ids, np.int32), np.full(len(ids), logp, np.float32), 3, info)


class Script:
    """Answers by context: after these tokens come these chunks. Says of every call what was asked."""

    def __init__(self, chunks: Mapping[tuple[int, ...], Sequence[Chunk]], room: int = 99) -> None:
        self.chunks, self.room = chunks, room
        self.asked: list[tuple[int, ...]] = []
        self.keys: list[Any] = []
        self.sampling: list[Sampling] = []

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int, *, key: Sequence[object]
    ) -> list[Trace]:
        if len(context) > self.room:
            raise NoRoom(len(context), self.room, 1)
        await asyncio.sleep(0)
        self.asked.append(tuple(context.tolist()[1:]))
        self.keys.append(key)
        self.sampling.append(sampling)
        return [trace(*ids, logp=logp) for ids, logp in self.chunks[self.asked[-1]][:n]]


def context(engine: Script, right: str = "", ungraded: str = "-") -> Any:
    """A run that says 1 of the answer `right`, nothing of `ungraded`, and remembers what it grades."""
    graded: list[str] = []

    def grade(problem: Problem, steps: Sequence[Any]) -> Any:
        said = "".join(s.info["text"] for s in steps)
        graded.append(said)
        return None if said == ungraded else {"score": float(said == right)}

    task = SimpleNamespace(environment=lambda problem: None, grade=grade, graded=graded)
    model = SimpleNamespace(encode=lambda text: np.array([0], np.int32), decode=lambda ids: "".join(map(str, ids)))
    return testing.context(engine=engine, task=task, models={"policy": model})


def request(n: int = 1, max_new: int = 2, **fields: Any) -> Request:
    return Request(Problem("t", "p", "x"), n, Sampling(max_new=max_new), key="p#0", **fields)


def searched(ctx: Any, asked: Request, **fields: Any) -> Trajectory:
    (t,) = asyncio.run(TreeSearch(**fields).group(asked, ctx))
    return t


def said(t: Trajectory) -> list[str]:
    return ["".join(t.steps[i].info["text"] for i in path) for path in t.paths()]


def chain(depth: int) -> list[Node]:
    """Root to leaf."""
    tree = Tree(request(), np.array([0], np.int32))
    for _ in range(depth):
        tree.add(tree.nodes[-1], [trace(1)])
    return tree.nodes


# ---------------------------------------------------------------- by hand


def test_a_success_counts_less_towards_the_root_and_a_failure_takes_nothing_from_it() -> None:
    nodes = chain(3)
    back_up_signed(nodes[-1], 1.0)
    assert [n.value for n in nodes] == [0.25, 0.5, 0.75, 1.0]
    back_up_signed(nodes[-1], -1.0)
    assert [n.value for n in nodes] == [0.25, 0.5, 0.75, 1.0] and [n.visits for n in nodes] == [2] * 4
    back_up_signed(nodes[2], 1.0)  # a leaf at depth 2: one, two and three thirds more
    assert [n.value for n in nodes] == pytest.approx([0.25 + 1 / 3, 0.5 + 2 / 3, 1.75, 1.0])


def test_a_success_makes_good_all_failures() -> None:
    nodes = chain(1)
    back_up_signed(nodes[1], -1.0), back_up_signed(nodes[1], -1.0)
    assert [n.value for n in nodes] == [-1.0, -2.0]
    back_up_signed(nodes[1], 1.0)
    assert [n.value for n in nodes] == [0.5, 1.0]


def test_the_discount_has_a_floor() -> None:
    nodes = chain(29)
    back_up_signed(nodes[-1], 1.0)
    assert [n.value for n in nodes[:5]] == pytest.approx([0.1, 0.1, 0.1, 4 / 30, 5 / 30])


def test_a_mean_backup_is_the_mean_of_answers() -> None:
    nodes = chain(2)
    back_up_mean(nodes[2], 1.0), back_up_mean(nodes[1], 0.0)
    assert [n.q for n in nodes] == [0.5, 0.5, 1.0] and [n.visits for n in nodes] == [2, 2, 1]


def test_the_score_of_a_frontier_node() -> None:
    above = Node(None, value=1.0, visits=2)  # Q = 0.5
    node = Node(None, above, depth=16)
    assert score(node, (0.4, 0.0, 0.01), 64) == pytest.approx(0.18985, abs=5e-6)
    above.logp, above.decided, node.logp, node.decided = -4.0, 3, -7.0, 5
    assert node.uncertainty == 1.5 and node.confidence == -1.4
    assert score(node, (0.4, 0.4, 0.01), 64) == pytest.approx(0.18985 + 0.4 * 1.5, abs=5e-6)
    assert score(Node(None, depth=64), (0.4, 0.4, 0.01), 64) == pytest.approx(0.01)


def test_uct() -> None:
    above = Node(None, visits=4)
    node = Node(None, above, value=1.0, visits=2)
    assert uct(node, 2.0) == pytest.approx(0.5 + 2 * sqrt(log(4) / 2))
    assert uct(Node(None, Node(None), value=1.0, visits=2), 2.0) == 0.5  # nothing was backed up to the parent
    assert uct(Node(None, above), 2.0) == float("inf")


# ---------------------------------------------------------------- whole searches

# root -> 1 -> 3 -> (5 right, 6 wrong), 4 -> wrong; root -> 2, which is likelier and goes on to wrong answers
WORLD: dict[tuple[int, ...], list[Chunk]] = {
    (): [((1,), -1.0), ((2,), -0.5)],
    (1,): [((3,), -1.0), ((4, END), -3.0)],
    (2,): [((7, END), -1.0), ((8, END), -0.2)],
    (1, 3): [((5, END), -1.0), ((6, END), -0.1)],
}
DEEP = {"width": 2, "depth": 3, "weights": (0.4, 0.0, 0.01)}


def test_a_search_step_by_step() -> None:
    engine = Script(WORLD)
    ctx = context(engine, right=f"135{END}")
    t = searched(ctx, request(3, 6), **DEEP)
    # the root's children tie, so on at 1; there 4 is an answer, so the frontier: 3 (parent -0.5 / 2) at depth 2 against
    # 2 (parent -1/3 / 1) at depth 1: 3. It has a right answer, backed up in spite of the surer wrong one. Then 2.
    assert engine.asked == [(), (1,), (1, 3), (2,)]
    assert ctx.task.graded == [f"14{END}", f"135{END}", f"136{END}", f"27{END}", f"28{END}"]
    assert said(t) == [f"14{END}", f"135{END}", f"28{END}"]  # of two wrong ones, the surest
    assert [s.max_new for s in engine.sampling] == [2] * 4 and len(set(map(str, engine.keys))) == 4
    # values: leaf 14 at depth 2 gives (1/3, 2/3, 1) of -1; 135 at depth 3 sets 1 to 1/2 and 3 to 3/4
    q = {s.info["text"]: s.info["q"] for s in t.steps}
    expected = {"1": 0.5, "3": 0.75, "2": -2 / 3}
    for name, value in expected.items():
        assert q[name] == pytest.approx([tanh(value)])
    assert q[f"4{END}"].tolist() == [-1, -1] and q[f"5{END}"].tolist() == [1, 1] and q[f"8{END}"].tolist() == [-1, -1]


def test_a_shared_step_is_one_row() -> None:
    t = searched(context(Script(WORLD), right=f"135{END}"), request(3, 6), **DEEP)
    batch = pack([t])
    assert len(batch) == 4 and int(batch["mask"].sum()) == 9  # 1 alone; 3 with 5; 4; 2 with 8
    assert batch["leaf"].tolist().count(True) == 3 and (batch["child"] == -2).sum() == 1
    # nodes that became one row keep their values apart
    said_by = {tuple(s.action.tolist()): q for s, q in zip(batch.steps, batch["q"], strict=True)}
    assert said_by[(3, 5, END)].tolist() == pytest.approx([tanh(0.75), 1, 1])


def test_uncertainty_draws_the_frontier() -> None:
    chunks = {**WORLD, (): [((1,), -1.0), ((2,), -9.0)]}
    engine = Script(chunks)
    searched(context(engine), request(3, 6), **{**DEEP, "weights": (0.4, 0.4, 0.01)})
    assert engine.asked[:3] == [(), (1,), (2,)]


def test_where_nothing_can_be_grown_the_other_answers_follow() -> None:
    chunks = {(): [((1, END), -2.0), ((2, END), -1.0), ((3, END), -3.0), ((4, END), -0.5)]}
    ctx = context(Script(chunks), right=f"3{END}")
    t = searched(ctx, request(3, 2), width=4, depth=1)
    assert said(t) == [f"2{END}", f"3{END}", f"4{END}"]  # the right one, then the surest
    assert [s.info["q"][0] for s in t.steps] == [-1, 1, -1] and len(ctx.task.graded) == 4
    whole = searched(context(Script(chunks)), request(4, 2), width=4, depth=1)
    assert len(said(whole)) == 4 and [s.parent for s in whole.steps] == [None] * 4  # plain samples


def test_the_depth_is_a_limit_and_the_tokens_are_those_of_a_plain_answer() -> None:
    chunks = {(): [((1, 2), -1.0)], (1, 2): [((3, 4), -1.0)]}
    t = searched(context(Script(chunks)), request(1, 4), width=1, depth=2)
    assert said(t) == ["1234"] and t.status is Status.TRUNCATED
    with pytest.raises(ContractError, match="max_new is 5: expected a multiple of depth, which is 2"):
        searched(context(Script(chunks)), request(1, 5), depth=2)


def test_chunks_of_so_many_tokens_but_for_the_last() -> None:
    """Of 5 tokens in chunks of 2 there are three, the last of 1 token, whatever `depth` says."""
    engine = Script({(): [((1, 2), -1.0)], (1, 2): [((3, 4), -1.0)], (1, 2, 3, 4): [((5,), -1.0)]})
    t = searched(context(engine), request(1, 5), width=1, chunk=2)
    assert [s.max_new for s in engine.sampling] == [2, 2, 1] and said(t) == ["12345"]


def test_a_budget_ends_the_search() -> None:
    engine = Script(WORLD)
    t = searched(context(engine), request(3, 6), **DEEP, budget=2)
    assert len(engine.asked) == 2 and said(t) == [f"14{END}"]
    t = searched(context(Script(WORLD)), request(3, 6), **DEEP, budget=1)  # nothing is an answer yet: the surest
    assert said(t) == ["2"] and t.status is Status.TRUNCATED


def test_breadth_takes_every_node_and_mean_every_answer() -> None:
    engine = Script(WORLD)
    t = searched(
        context(engine, right=f"135{END}"),
        request(9, 6),
        **DEEP,
        select="breadth",
        backup="mean",
        every=True,
        whole=True,
    )
    assert engine.asked == [(), (1,), (2,), (1, 3)]
    q = {s.info["text"]: float(s.info["q"][0]) for s in t.steps}
    assert q["1"] == pytest.approx(-1 / 3) and q["3"] == 0 and q["2"] == -1  # (1 - 1 - 1) / 3, (1 - 1) / 2
    assert len(t.steps) == 8 and len(said(t)) == 5


def test_uct_descends_from_the_root_past_what_is_finished() -> None:
    engine = Script(WORLD)
    t = searched(context(engine, right=f"135{END}"), request(9, 6), **DEEP, select="uct", backup="mean", every=True)
    # after 2's children are answers nothing is left there
    assert sorted(engine.asked) == sorted(WORLD) and len(said(t)) == 5


def test_what_nobody_grades_is_not_backed_up() -> None:
    chunks = {(): [((1, END), -1.0), ((2, END), -2.0)]}
    t = searched(context(Script(chunks), ungraded=f"1{END}"), request(2, 2), width=2, depth=1)
    assert said(t) == [f"2{END}"]
    with pytest.raises(ContractError, match="reward 'scorn' is graded by nobody; did you mean 'score'"):
        searched(context(Script(chunks)), request(2, 2), width=2, depth=1, reward="scorn")


def test_a_text_that_outgrows_the_model_is_an_answer() -> None:
    chunks = {(): [((1, 2), -1.0)]}
    t = searched(context(Script(chunks, room=2)), request(1, 4), width=1, depth=2)
    assert said(t) == ["12"] and t.steps[0].info["q"].tolist() == [-1, -1]
    with pytest.raises(NoRoom):
        searched(context(Script(chunks, room=0)), request(1, 4), width=1, depth=2)


def test_a_prefix_comes_first() -> None:
    hint = Step.of(np.array([0], np.int32), np.array([1], np.int32), info={"text": "1"})
    engine = Script(WORLD)
    t = searched(context(engine, right=f"135{END}"), request(1, 4, prefix=(hint,)), width=2, depth=2)
    assert (
        engine.asked == [(1,)] and not t.steps[0].mask.any() and t.steps[1].parent == 0 and said(t)[0].startswith("1")
    )


def test_a_known_answer_stands_beside_plain_samples() -> None:
    known = {"action": np.array([1, END], np.int32), "mask": np.array([False, True]),
             "logp": np.array([0, -2.0], np.float32), "version": np.array([-1, 5])}  # fmt: skip
    engine = Script({(): [((2, END), -1.0), ((3, END), -1.0), ((4, END), -1.0)]})
    group = asyncio.run(TreeSearch().group(request(3, 2, settings={"known": known}), context(engine)))
    assert engine.asked == [()] and [t.steps[0].action.tolist() for t in group] == [[2, END], [3, END], [1, END]]
    last = group[-1].steps[0]
    assert last.mask.tolist() == [False, True] and last.version.tolist() == [-1, 5] and last.info["text"] == f"1{END}"
    assert len(asyncio.run(TreeSearch().group(request(1, 2, settings={"known": known}), context(engine)))) == 1
    batch = pack(group)
    assert batch["group"].unique().numel() == 1 and "q" not in batch


def test_searches_side_by_side_are_the_searches_alone() -> None:
    async def both() -> list[list[Trajectory]]:
        search = TreeSearch(**DEEP)
        ctxs = [context(Script(WORLD), right=f"135{END}") for _ in range(3)]
        return await asyncio.gather(*(search.group(request(3, 6), c) for c in ctxs))

    alone = said(searched(context(Script(WORLD), right=f"135{END}"), request(3, 6), **DEEP))
    assert [said(t) for (t,) in asyncio.run(both())] == [alone] * 3


# ---------------------------------------------------------------- in a run

RUN = """
steps = 3
threads = 1
task = {name = "arithmetic", kind = "add", digits = 1}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {use = "tree", n = 4, width = 3, depth = 2, sampling.max_new = 4}
curriculum = {use = "cached_solutions", rate = 1.0, inner = {use = "sequential", pool = 4}}
buffer.size = 4
collect.node_advantage = {}
part.policy = {terms.loss = {use = "clip", behaviour = "old", reduce = "decision"}, optimiser.lr = 1e-2}
"""


@pytest.mark.parametrize("engine", ["", "engine = {staleness = 1, virtual = {decode = 0.01, train = 0.1}}\n"])
def test_a_run_on_trees(engine: str, tmp_path: Any) -> None:
    file = tmp_path / "trees.toml"
    file.write_text(engine + RUN)
    reports = list(train(load(file)))
    assert len(reports) == 3 and all(r["policy/approx_kl"] < 1e-6 for r in reports)  # chunks are scored as sampled
    assert all(r["policy/grad_norm"] > 0 for r in reports)
    assert all(r["policy/rows"] > r["rollout/episodes"] for r in reports[:1])


def test_the_sampled_probabilities_are_those_of_the_rows(tmp_path: Any) -> None:
    """A tree whose nodes became rows is scored as its chunks were sampled: the engine's own gap."""
    file = tmp_path / "trees.toml"
    file.write_text(RUN)
    assert all(r["engine/gap_max"] < 1e-4 for r in train(load(file)))
