"""What a node takes of what others told: groups that differ by its own grading, nothing that it cannot read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import load
from shuhari.curricula.sequential import Sequential
from shuhari.curricula.shared import Shared, describe_group, read_told, show_group
from shuhari.data import ContractError, Problem, Request, copy_with
from shuhari.loop.run import Run, open_run
from shuhari.rollouts.foreign import SAID, Foreign
from shuhari.store.codec import dumps

RECIPE = """steps = 2
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
[rollout]
use = "foreign"
n = 2
sampling.max_new = 4
sampling.temperature = 0.5
[buffer]
size = 2
[collect.advantage]
[part.policy]
terms.clip = {}
optimiser.lr = 1e-2
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "r.toml").write_text(RECIPE)
    with open_run(load(tmp_path / "r.toml")) as opened:
        opened.enter_stage()
        opened.ctx.step = 1  # round 0 was told
        yield opened


def tell(folder: Path, run: Run, answers: list[list[Any]], node: str = "other", round: int = 0) -> list[Problem]:
    """Groups that another node told: of problem i the texts answers[i], all ended."""
    source = run.ctx.task.problems("train")
    problems = [source[i] for i in range(len(answers))]
    told = [{"problem": p, "answers": [[x, True] for x in said]} for p, said in zip(problems, answers, strict=True)]
    path = folder / node / f"{round:08d}.told"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(told))
    return problems


def select(curriculum: Shared, n: int, run: Run) -> Any:
    return asyncio.run(curriculum.select(n, run.ctx))


def right(run: Run, i: int) -> str:
    return str(run.ctx.task.problems("train")[i].answer)


def test_groups_that_are_all_right_or_all_wrong_are_never_taken(run: Any, tmp_path: Path) -> None:
    good, other = right(run, 1), right(run, 2)
    problems = tell(tmp_path, run, [["+", "+"], [good, "+"], [other, other]])
    for useful, expected in ((True, {problems[1].id}), (False, {p.id for p in problems})):
        asked = select(Shared(Sequential(), str(tmp_path), useful=useful, external=1.0), 3, run)
        taken = {r.problem.id: r for r in asked if SAID in r.settings}
        assert taken.keys() == expected and len(asked) == 3, "own problems take the place of what is lacking"
    (mixed,) = (r for r in asked if r.problem.id == problems[1].id)
    assert [t.steps[0].reward["score"] for t in mixed.settings[SAID]] == [1.0, 0.0], "by this run's own grading"


def test_what_a_node_told_itself_and_other_rounds_are_left_alone(run: Any, tmp_path: Path) -> None:
    good = right(run, 0)
    tell(tmp_path, run, [[good, "+"]], node="me")
    tell(tmp_path, run, [[good, "+"]], round=1)
    assert not [r for r in select(Shared(Sequential(), str(tmp_path), "me", 1.0), 2, run) if r.settings]
    run.ctx.step = 3
    for window, expected in ((1, 0), (2, 1)):
        asked = select(Shared(Sequential(), str(tmp_path), "me", 1.0, window), 2, run)
        assert len([r for r in asked if r.settings]) == expected


def test_a_step_takes_no_group_twice(run: Any, tmp_path: Path) -> None:
    tell(tmp_path, run, [[right(run, i), "+"] for i in range(3)])
    curriculum = Shared(Sequential(), str(tmp_path), "me", external=0.5)
    taken = [r.problem.id for _ in range(2) for r in select(curriculum, 4, run) if r.settings]
    assert len(taken) == 3 == len(set(taken))


def test_a_share_of_the_batch_is_rounded_down(run: Any, tmp_path: Path) -> None:
    tell(tmp_path, run, [[right(run, i), "+"] for i in range(10)])
    for external, n, expected in ((0.3, 10, 3), (0.5, 5, 2), (0.0, 8, 0)):
        asked = select(Shared(Sequential(), str(tmp_path), "me", external), n, run)
        assert len([r for r in asked if r.settings]) == expected and len(asked) == n


def test_external_answers_have_the_log_probabilities_of_the_policy_now(run: Any, tmp_path: Path) -> None:
    """Against the policy's own samples: told as text and read back, they get what sampling said of them."""
    own = asyncio.run(
        Foreign().group(run.ctx.stamp_request(Request(run.ctx.task.problems("train")[0], 6), ""), run.ctx)
    )
    curriculum = Shared(Sequential(), str(tmp_path), "other", external=1.0, useful=False)
    told = describe_group(own)
    assert told["problem"].solution is None and [a[0] for a in told["answers"]] == [
        t.steps[0].info["text"] for t in own
    ]
    shown = show_group(told, run.ctx, "policy")
    request = run.ctx.stamp_request(Request(own[0].request.problem, 6, settings={SAID: tuple(shown)}), "")
    again = asyncio.run(Foreign().group(request, run.ctx))
    for a, b in zip(own, again, strict=True):
        assert a.steps[0].action.tolist() == b.steps[0].action.tolist() and a.status is b.status
        assert b.steps[0].logp == pytest.approx(a.steps[0].logp, abs=1e-5)
    assert curriculum.report() == {}


def test_with_groups_in_flight_over_steps_they_are_refused(run: Any) -> None:
    """The weights now are of no version that the engine samples by."""
    request = run.ctx.stamp_request(Request(run.ctx.task.problems("train")[0], 2), "")
    own = asyncio.run(Foreign().group(request, run.ctx))
    told = copy_with(request, settings={SAID: tuple(own)})
    assert len(asyncio.run(Foreign().group(told, run.ctx))) == 2
    run.ctx.engine.staleness = 1
    with pytest.raises(ContractError, match=r"engine\.staleness is 1.*expected 0"):
        asyncio.run(Foreign().group(told, run.ctx))


@pytest.mark.parametrize(
    "written",
    [b"", b"shuhari1", b"\x80\x04K\x01.", dumps({"problem": 1}), dumps([1, "x", {"problem": "p", "answers": []}]),
     dumps([{"problem": Problem("arithmetic", "a", "1+1="), "answers": [["\u20ac", True], [3, True], "x"]}]),
     dumps([{"problem": Problem("arithmetic", "a", "1+1="), "answers": [["1" * 99, True], ["2", True]]}])],
)  # fmt: skip
def test_what_is_no_group_is_left_out(written: bytes, run: Any, tmp_path: Path) -> None:
    """Also a pickle, letters that the tokenizer has not, and answers that are too long."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00000000.told").write_bytes(written)
    asked = select(Shared(Sequential(), str(tmp_path), external=1.0, useful=False), 2, run)
    assert len(asked) == 2 and not any(r.settings for r in asked)


def test_a_folder_that_is_not_there_tells_nothing(run: Any, tmp_path: Path) -> None:
    assert read_told(tmp_path / "none") == []
    assert len(select(Shared(Sequential(), str(tmp_path / "none")), 2, run)) == 2
    with pytest.raises(ValueError, match="expected the name of a folder"):
        Shared(Sequential(), node="../up")
