"""The tool game: by hand, hostile lines, the split, and what a demonstration becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuhari.data import Problem, Status, Step
from shuhari.tasks.shop import HELP, Shop

PENS = Problem("shop", "x", "pen+cup?\n", "42", None, {"prices": {"pen": 17, "cup": 25}})


def game(turns: int = 9) -> Any:
    world = Shop(turns=turns).environment(PENS)
    assert world.reset(PENS) == "pen+cup?\n"
    return world


def scored(*lines: str) -> float:
    steps = [Step.of(None, 0, info={"text": line}) for line in lines]
    return float(Shop().grade(PENS, [*steps, Step.closing(None, len(steps) - 1, 0.0)])["score"])


def test_a_game_by_hand() -> None:
    world = game()
    assert world.step("find pen") == ("17\n", {}, None)
    assert world.step("find cup\n") == ("25\n", {}, None)
    assert world.step("add 17 25") == ("42\n", {}, None)
    assert world.step("say 42") == ("", {}, Status.FINISHED)
    with pytest.raises(RuntimeError, match="ended"):
        world.step("say 42")


def test_the_last_line_is_what_counts() -> None:
    assert scored("find pen", "say 42") == scored("say 042\n") == 1.0
    assert scored("say 42", "say 41") == scored("add 17 25") == scored("42") == scored("say 42.") == scored("") == 0.0
    assert scored("say ４２") == scored("say 42\n\n") == scored("say 42\nsay 42") == 0.0  # ASCII digits, one line


@given(st.text(max_size=40) | st.sampled_from(["find pen ", "add 1", "add -1 2", "say 1e3", "find __class__"]))
def test_whatever_is_said_gets_an_answer_that_can_be_written(line: str) -> None:
    world = game()
    told, reward, status = world.step(line)
    assert set(told) <= set(Shop().alphabet) and reward == {}
    assert (status is Status.FINISHED) == (told == "")
    assert 0.0 <= scored(line) <= 1.0


def test_malformed_lines_are_told_what_there_is_and_use_up_turns() -> None:
    world = game(turns=3)
    assert world.step("open('/etc/passwd')") == (HELP, {}, None)
    assert world.step("find hat") == ("? no such item\n", {}, None)
    assert world.step(b"\xff") == (HELP, {}, Status.TRUNCATED)
    assert game(turns=1).step("say 1")[2] is Status.FINISHED  # the last turn may end it
    assert game().step("add 999999999 1")[0] == "1000000000\n"
    assert game().step("add 1000000000 1")[0] == HELP  # numbers are bounded


def test_held_out_problems_are_so_by_their_prices() -> None:
    def content(p: Problem) -> frozenset[Any]:
        return frozenset(p.info["prices"].items())

    task, other = Shop(test_size=40), Shop(seed=5)
    test = {content(task.problems("test")[i]) for i in range(40)}
    seen = {content(t.problems("train")[i]) for t in (task, other) for i in range(400)}
    assert len(test) == 40 and not test & seen and len(seen) > 700
    one, again = task.problems("train")[3], Shop().problems("train")[3]
    assert (one.id, one.solution) == (again.id, again.solution) != (other.problems("train")[3].id, None)


@pytest.mark.parametrize("items", [2, 3])
def test_demonstrations_play_well_unless_they_guess(items: int) -> None:
    share, wins = 0.3, {True: 0, False: 0}
    for i in range(300):
        task = Shop(items=items, guess=share)
        problem = task.problems("train")[i]
        world, turns = task.environment(problem), problem.solution
        world.reset(problem)
        assert isinstance(turns, tuple)
        told = [world.step(turn) for turn in turns]
        assert [status for _, _, status in told] == [None] * (len(turns) - 1) + [Status.FINISHED]
        assert not any(text.startswith("?") for text, _, _ in told)
        complete = sum(str(turn).startswith("find") for turn in turns) == items
        right = turns[-1] == f"say {problem.answer}"
        assert right or not complete
        assert int(str(problem.answer)) == sum(problem.info["prices"].values())
        wins[complete] += right
    assert abs(wins[True] / 300 - (1 - share)) < 0.12 and wins[False] < 15


def test_prices_are_all_numbers_of_their_digits() -> None:
    for digits, prices in ((1, range(1, 10)), (2, range(10, 100))):
        source = Shop(digits=digits, items=8).problems("train")
        assert {x for i in range(200) for x in source[i].info["prices"].values()} == set(prices)


def test_a_snapshot_goes_on_as_if_undisturbed() -> None:
    world, copy = game(turns=3), Shop(turns=3).environment(PENS)
    world.step("find pen")
    assert copy.restore(world.snapshot()) == "17\n"
    for line in ("find cup", "what?"):
        assert world.step(line) == copy.step(line)
    begun = Problem("shop", "x", None, start=game().snapshot())
    assert Shop().environment(begun).reset(begun) == "pen+cup?\n"


@pytest.mark.parametrize("field", [{"items": 1}, {"items": 9}, {"digits": 0}, {"guess": 1.5}, {"turns": 0}])
def test_settings_out_of_range_are_named(field: dict[str, Any]) -> None:
    name, value = next(iter(field.items()))
    with pytest.raises(ValueError, match=f"Shop: {name} is {value}: expected"):
        Shop(**field)
