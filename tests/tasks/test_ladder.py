"""Facts of a ladder: against enumeration of facts and answers, and the stated laws of levels and demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from shuhari.data import Problem
from shuhari.tasks.ladder import ALPHABETS, Domain, Ladder, Level
from spoken import said, score_uniform

PAIRS, SAYS = ALPHABETS[0]
ONE = {"facts": (64,), "rates": (1.0,)}
SINGLE = {"one": Level(((1,),))}


def shown(task: Ladder, n: int) -> list[Problem]:
    train = task.problems("train")
    return [train[i] for i in range(n)]


def near(found: int, n: int, p: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(found - n * p) <= 4 * sqrt(n * p * (1 - p)) + 1e-9


def pairs(problem: Problem) -> list[str]:
    text = str(problem.prompt)[:-1]
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def facts(**settings: Any) -> dict[str, str]:
    """pair -> letter, of all facts, from problems of one."""
    task = Ladder(**{**ONE, "levels": SINGLE, **settings})
    problems = [*shown(task, 1500), *task.problems("test").problems]  # type: ignore[union-attr]
    return {pairs(p)[0]: str(p.answer) for p in problems}


def kinds(task: Ladder, n: int = 400) -> list[set[str]]:
    """The pairs of each kind, as problems of that kind alone have them."""
    count = len(task.facts)
    rows = [tuple(int(i == kind) for i in range(count)) for kind in range(count)]
    own = [Ladder(task.facts, task.rates, {"x": Level((row,))}, codes=task.codes) for row in rows]
    return [{pairs(p)[0] for p in (*shown(x, n), *x.problems("test").problems)} for x in own]  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------ facts


def test_every_pair_is_a_fact_and_answers_are_those_of_the_facts_in_order() -> None:
    known = facts()
    assert sorted(known) == ["".join(x) for x in product(PAIRS, repeat=2)] and set(known.values()) == set(SAYS)
    for problem in shown(Ladder(**ONE, levels={"four": Level(((4,),))}), 200):  # type: ignore[arg-type]
        assert problem.answer == "".join(known[pair] for pair in pairs(problem))


def test_facts_hang_on_codes_alone() -> None:
    assert facts(seed=3) == facts() != facts(codes=1)
    assert kinds(Ladder()) == kinds(Ladder(seed=3)) != kinds(Ladder(codes=1))


def test_kinds_have_their_numbers_of_facts_and_share_none() -> None:
    of = kinds(Ladder((20, 12, 3), (1.0, 1.0, 1.0), {"x": Level(((1, 1, 1),))}))
    assert [len(x) for x in of] == [20, 12, 3] and len(set().union(*of)) == 35


def test_one_answer_of_all_is_right() -> None:
    task = Ladder(**ONE, levels={"two": Level(((2,),))})  # type: ignore[arg-type]
    problem = task.problems("train")[0]
    every = ["".join(x) for n in range(4) for x in product(SAYS, repeat=n)]
    scores = {text: task.grade(problem, said(text))["score"] for text in every}
    answers = task.answers(problem)
    assert {t for t, s in scores.items() if s} == {problem.answer} == set(answers.texts)
    assert answers.scores == (1.0,) and not answers.complete


# ------------------------------------------------------------------------------------------------ levels and splits


def test_a_level_has_its_facts_of_each_kind_in_any_order() -> None:
    task = Ladder()
    of = kinds(task)
    rows: dict[str, Counter[Sequence[int]]] = {name: Counter() for name in task.levels}
    orders: Counter[Sequence[int]] = Counter()
    for p in shown(task, 3000):
        which = [next(i for i, kind in enumerate(of) if pair in kind) for pair in pairs(p)]
        rows[p.info["level"]][tuple(which.count(i) for i in range(3))] += 1
        orders[tuple(which)] += 1
    assert {name: set(found) for name, found in rows.items()} == {n: set(x.of) for n, x in task.levels.items()}
    useful = rows["useful"]
    assert near(useful[2, 1, 0], sum(useful.values()), 0.5)  # a level's rows are alike often
    assert all(near(orders[order], useful[2, 1, 0], 1 / 3) for order in ((0, 0, 1), (0, 1, 0), (1, 0, 0)))


def test_levels_are_trained_on_by_their_shares_and_tested_alike() -> None:
    levels = {"a": Level(((1, 1),), 3.0), "b": Level(((2, 0),), 1.0), "c": Level(((0, 2),), 0.0)}
    task, n = Ladder((20, 20), (1.0, 1.0), levels, test_size=120), 2000
    trained = Counter(p.info["level"] for p in shown(task, n))
    assert near(trained["a"], n, 0.75) and trained["c"] == 0
    problems = task.problems("test").problems  # type: ignore[union-attr]
    assert Counter(p.info["level"] for p in problems) == dict.fromkeys("abc", 40)
    assert [p.info["level"] for p in problems[:3]] == ["a", "b", "c"]  # so that the first few are of all


def test_a_level_of_few_problems_is_tested_on_those_that_there_are() -> None:
    task = Ladder((40, 20), (1.0, 1.0), {"few": Level(((0, 1),)), "many": Level(((2, 0),))}, test_size=100)
    found = Counter(p.info["level"] for p in task.problems("test").problems)  # type: ignore[union-attr]
    assert found["many"] == 50 and 0 < found["few"] < 20


def test_no_prompt_is_trained_on_and_tested() -> None:
    task = Ladder((6, 6, 6))
    test, train = {p.id for p in task.problems("test").problems}, {p.id for p in shown(task, 4000)}  # type: ignore[union-attr]
    other = {p.id for p in Ladder((6, 6, 6), seed=5).problems("test").problems}  # type: ignore[union-attr]
    assert len(test) > 100 and not train & (test | other)


# ------------------------------------------------------------------------------------------------ demonstrations


def test_demonstrations_get_facts_right_at_the_rates_of_their_kinds() -> None:
    rates = (0.9, 0.4, 0.05)
    task, n = Ladder(rates=rates, levels={"all": Level(((1, 1, 1),))}), 3000
    of = kinds(task)
    right, wrong = Counter[int](), Counter[int]()
    for p in shown(task, n):
        for pair, a, b in zip(pairs(p), str(p.answer), str(p.solution), strict=True):
            right[next(i for i, kind in enumerate(of) if pair in kind)] += a == b
            wrong[(SAYS.index(b) - SAYS.index(a)) % 10] += 1
    assert all(near(right[i], n, rate) for i, rate in enumerate(rates))
    slips = sum(wrong[i] for i in range(1, 10))
    assert all(near(wrong[i], slips, 1 / 9) for i in range(1, 10))


def test_rates_move_solutions_and_no_problem() -> None:
    one, other = shown(Ladder(), 300), shown(Ladder(rates=(1.0, 1.0, 1.0)), 300)
    assert [(p.prompt, p.answer, p.info) for p in one] == [(p.prompt, p.answer, p.info) for p in other]
    assert all(p.solution == p.answer for p in other) and any(p.solution != p.answer for p in one)


# ------------------------------------------------------------------------------------------------ domains and form


def test_domains_write_the_same_facts_in_other_letters() -> None:
    letters, says = ALPHABETS[2]
    known = facts()
    other = facts(domains={"b": Domain(mark=":", alphabet=2)})
    assert other == {"".join(letters[PAIRS.index(x)] for x in k): says[SAYS.index(v)] for k, v in known.items()}


@pytest.mark.parametrize("changed", [0.0, 0.3, 1.0])
def test_domains_contradict_a_share_of_the_facts(changed: float) -> None:
    known, other = facts(), facts(domains={"c": Domain(changed=changed)})
    assert near(sum(known[k] != other[k] for k in known), 64, changed)


def test_domains_are_told_apart_by_their_marks() -> None:
    domains = {"a": Domain(), "b": Domain(":", 1, share=2.0), "c": Domain(";", 2, share=0.0)}
    task, n = Ladder(domains=domains), 1500
    trained = shown(task, n)
    assert all(str(p.prompt)[-1] == domains[p.info["domain"]].mark for p in trained)
    assert near(sum(p.info["domain"] == "b" for p in trained), n, 2 / 3)
    tested = Counter(p.info["domain"] for p in task.problems("test").problems)  # type: ignore[union-attr]
    assert set(tested) == {"a", "b", "c"} and len(set(tested.values())) == 1
    assert all(set(str(p.prompt) + str(p.answer)) <= set(task.alphabet) for p in trained)


def test_an_answer_without_its_frame_is_known_by_its_label() -> None:
    n, task = 2000, Ladder(frame="()", framed=0.2, rates=(1.0, 1.0, 1.0))
    problems = shown(task, n)
    answers = task.answers(problems[0])
    whole, bare = answers.texts
    assert whole == problems[0].answer == "(" + str(bare) + ")" and answers.labels == ("", "bare")
    for text, score in zip(answers.texts, answers.scores, strict=True):
        assert task.grade(problems[0], said(str(text))) == {"score": score}
    assert near(sum(p.solution == p.answer for p in problems), n, 0.2)
    assert all(str(p.solution).strip("()") == str(p.answer).strip("()") for p in problems)
    assert set("()") < set(task.alphabet)


# ------------------------------------------------------------------------------------------------ exact numbers


def test_a_uniform_policy_scores_as_counted(tmp_path: Path) -> None:
    """Under equal logits over 21 characters and the end: 22^-4 for three letters and the end, 22^-6 with a frame."""
    found = score_uniform({"name": "ladder", "frame": "()"}, 6, 30, tmp_path)
    assert found["mean@known"] == found["mean@rare"] == pytest.approx(22.0**-6)
    assert found["mass@bare"] == pytest.approx(22.0**-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"facts": (40, 20, 5)}, "facts are"),
        ({"rates": (0.5,)}, "one for each of the 3 kinds"),
        ({"levels": {"x": Level(((1, 1),))}}, "level 'x'"),
        ({"levels": {"x": Level(((0, 0, 0),))}}, "not all 0"),
        ({"facts": (20, 0, 20), "levels": {"x": Level(((1, 1, 0),))}}, r"their numbers are \(20, 0, 20\)"),
        ({"levels": {"x": Level(((1, 0, 0),), 0.0)}}, "levels x: expected one with a share above 0"),
        ({"domains": {}}, r"domains \(none\)"),
        ({"domains": {"a": Domain(), "b": Domain()}}, "marks of domains"),
        ({"domains": {"a": Domain(mark="?")}}, "marks of domains"),
        ({"frame": "("}, "frame is"),
        ({"frame": "a)"}, "frame is"),
        ({"rates": (0.5, 2.0, 0.5)}, "rates"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ladder(**settings)
