"""Lookahead: which branches are left by given probabilities, what is given up, distances, and plain samples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import ContractError, Problem, Ramp, Request, Sampling, Status, Trajectory
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.methods.rlvr.latr.lookahead_tree import Lookahead, edit_distance
from shuhari.models.text.causal import Causal
from shuhari.needs import Need, Trace, gather
from shuhari.rollouts.single import Single

END = 9
TABLE = Mapping[str, tuple[tuple[int, float], tuple[int, float]]]


class Text:
    """The ids of digits are the digits."""

    end = END

    def encode(self, text: str) -> Any:
        return np.array([int(x) for x in text], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(str(i) for i in ids if i != END)


class Engine:
    """After what was said (the prompt, `0`, included), the two most probable tokens; where the table has none, 1 and 2
    at 0.9 and 0.1. Draws take the second where `draws`."""

    def __init__(self, table: TABLE, draws: bool = False) -> None:
        self.table, self.draws, self.live = table, draws, list[int]()

    async def sample(self, role: str, context: Any, sampling: Sampling, n: int, *, key: Any) -> list[Trace]:
        (one, p), (two, q) = self.table.get("".join(map(str, context)), ((1, 0.9), (2, 0.1)))
        if not sampling.top:  # plain samples
            return [Trace(np.array([7, END], np.int32), np.zeros(2, np.float32), 0, {"ended": True})] * n
        said, chance = (one, p) if sampling.greedy or not self.draws else (two, q)
        info = {"top": np.array([[one, two]]), "top_logp": np.log([[p, q]]), "ended": said == END}
        return [Trace(np.array([said], np.int32), np.array([log(chance)], np.float32), 3, info)]


def request(n: int, max_new: int = 4, **sampling: Any) -> Request:
    return Request(Problem("t", "0", "0"), n, Sampling(max_new=max_new, **sampling), key="k#0")


def grown(made: Lookahead, engine: Any, n: int, max_new: int = 4, **fields: Any) -> list[Trajectory]:
    task = SimpleNamespace(environment=lambda problem: None)
    ctx = testing.context(models={"policy": Text()}, task=task, engine=engine, **fields)
    return asyncio.run(made.group(request(n, max_new), ctx))


def words(group: list[Trajectory]) -> list[str]:
    return ["".join(map(str, t.steps[0].action)) for t in group if t.info["branch"]]  # type: ignore[arg-type]


def test_near_ties_alone_are_branched() -> None:
    """A tie behind the first token; a second token that is too rare; one that lies too far behind."""
    table: TABLE = {
        "0": ((1, 0.3), (2, 0.2)), "01": ((1, 0.5), (2, 0.4)), "011": ((3, 0.6), (4, 0.4)),
        "012": ((3, 0.45), (4, 0.35)),
    }
    group = grown(Lookahead(ages=(9,)), Engine(table), 8)
    assert words(group) == ["1131", "1231", "1241"]
    assert len(group) == 8 and [t.info["branch"] for t in group].count(0.0) == 5  # what is lacking is drawn plainly
    third = group[-1].steps[0]
    assert third.logp is not None
    np.testing.assert_allclose(third.logp, np.log([0.3, 0.4, 0.35, 0.9]), rtol=1e-6)
    assert third.version.tolist() == [3] * 4 and third.mask.all() and group[-1].status is Status.TRUNCATED


def test_bounds_above_one_give_a_single_greedy_path() -> None:
    table: TABLE = {"0": ((1, 0.5), (2, 0.5))}
    assert words(grown(Lookahead(second=1.0), Engine(table, draws=True), 8)) == ["1111"]
    assert words(grown(Lookahead(gap=0.0), Engine(table), 8)) == ["1111"]


class Ties(Engine):
    """Everywhere a tie of 1 and 2."""

    async def sample(self, role: str, context: Any, sampling: Sampling, n: int, *, key: Any) -> list[Trace]:
        self.table = {"".join(map(str, context)): ((1, 0.5), (2, 0.5))}
        return await super().sample(role, context, sampling, n, key=key)


def test_there_are_never_more_branches_than_room() -> None:
    """Ties everywhere: 1, 2, 4, then as many as there is room for, after which tokens are drawn (here the second)."""
    group = grown(Lookahead(ages=(9,)), Ties({}, draws=True), 6, max_new=4)
    assert sorted(words(group)) == sorted(["1112", "2112", "1212", "2212", "1122", "2122"]) and len(group) == 6
    assert words(grown(Lookahead(ages=(9,)), Ties({}), 8, max_new=3)) == list(
        dict.fromkeys(words(grown(Lookahead(ages=(9,)), Ties({}), 8, max_new=3)))
    )


@pytest.mark.parametrize(("age", "kept"), [(3, False), (2, True), (9, True)])
def test_a_branch_that_comes_to_say_the_same_is_given_up(age: int, kept: bool) -> None:
    """1111 and 2111: one of three differs, less than 0.4; of two a half; an age that never comes."""
    table: TABLE = {"0": ((1, 0.5), (2, 0.5))}
    assert words(grown(Lookahead(ages=(age,)), Engine(table), 2, max_new=4)) == ["1111"] + ["2111"] * kept


def test_what_has_ended_is_not_compared() -> None:
    table: TABLE = {"0": ((1, 0.5), (2, 0.5)), "021": ((END, 0.9), (1, 0.1))}
    group = grown(Lookahead(ages=(3,)), Engine(table), 2, max_new=5)
    assert words(group) == ["11111", f"21{END}"]
    assert [t.status for t in group] == [Status.TRUNCATED, Status.FINISHED]


def test_branches_of_what_is_given_up_are_then_of_its_parent() -> None:
    """2111 leaves at the first token, 2211 leaves that one at the second: as 2111 is given up at the age of 3, 2211 is
    left, and at the age of 4, of the first now, half of it differs."""
    table: TABLE = {"0": ((1, 0.5), (2, 0.5)), "02": ((1, 0.5), (2, 0.5))}
    assert words(grown(Lookahead(ages=(3,)), Engine(table), 3, max_new=3)) == ["111", "221"]
    assert words(grown(Lookahead(ages=(3, 4)), Engine(table), 3, max_new=4)) == ["1111", "2211"]
    assert words(grown(Lookahead(ages=(3, 4), alike=0.6), Engine(table), 3, max_new=4)) == ["1111"]


def test_a_schedule_of_the_share() -> None:
    made = Lookahead(share=Ramp(1.0, steps=((10.0, 0.5), (20.0, 0.0))), ages=(9,))
    trees = [len(words(grown(made, Ties({}), 8, count=count))) for count in (0, 10, 20)]
    assert trees == [8, 4, 0]


def test_distances() -> None:
    """Textbook ones, and of sequences of ids."""
    for a, b, wanted in (("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("abc", "abc", 0)):
        assert edit_distance([*map(ord, a)], [*map(ord, b)]) == edit_distance([*map(ord, b)], [*map(ord, a)]) == wanted


@pytest.mark.parametrize("settings", [{"stop": ("a",)}, {"top_p": 0.5}, {"temperature": Ramp(1.0, 0.5, 3.0)}])
def test_what_it_cannot_do_is_refused(settings: dict[str, Any]) -> None:
    task = SimpleNamespace(environment=lambda problem: None)
    ctx = testing.context(models={"policy": Text()}, task=task, engine=Engine({}))
    with pytest.raises(ContractError, match="lookahead: problem '0' of t: expected"):
        asyncio.run(Lookahead().group(request(2, **settings), ctx))


def test_of_a_model_log_probabilities_are_its_own_and_without_a_share_it_is_single() -> None:
    torch.manual_seed(0)
    model: Any = Causal(architecture="gpt2", hidden=16, layers=1, heads=2, context=32)
    model.build(SimpleNamespace(alphabet="0123456789"))

    def group(rollout: Any) -> Any:
        engine = Local()
        engine.sync({"policy": model}, 0)
        task = SimpleNamespace(environment=lambda problem: None)
        ctx = testing.context(models={"policy": model}, task=task, engine=engine)
        return pack(asyncio.run(rollout.group(request(8, 5, temperature=0.7), ctx)))

    batch = group(Lookahead(second=0.0, gap=1.0, ages=(9,)))
    assert len(batch) == 8 and batch["branch"].eq(1).all()
    need = Need(("policy",), "log_prob")
    scored = gather(batch, [need], {"policy": model})[need]
    torch.testing.assert_close(scored, batch["logp"].where(batch["mask"], 0.0), atol=1e-4, rtol=0)
    assert len({tuple(x) for x in batch["action"].tolist()}) == 8  # each branch is another answer
    for name in ("action", "logp"):
        assert torch.equal(group(Lookahead(share=0.0))[name], group(Single())[name])
