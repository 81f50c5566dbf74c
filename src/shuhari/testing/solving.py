"""The check of tasks: their problems, the grades of answers to them, and the environments that they are played in.

Left out: whether a grade is right, which only the task can know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from shuhari.data import Problem, Step
from shuhari.loop.breaches import DRAWS, generator_states
from shuhari.ports.declares import declares, is_among
from shuhari.ports.hooks import ability
from shuhari.store.codec import dumps
from shuhari.tasks.contract import explain_grade, explain_ids
from shuhari.testing.acting import Episodes, act_at_random, check_environment
from shuhari.testing.context import context
from shuhari.testing.looking import ConformanceError, rebuild, require, require_port, require_same, to_tree

GRADED = 4  # problems of each split whose answers are graded
TURNS = 64  # of an episode that is graded
NAMED = "numbers by name, such as {'score': 1.0}"
HOSTILE = ("", "?", "9" * 5_000, "(" * 2_000, "\x00\u0661\ud7ff", "__import__('os')")


def check_task(task: Any, *, n: int = 32, apart: bool = True, ctx: Any = None) -> None:
    """Look at the first n problems of a task's splits, and have answers to the first four of each graded.

    Both splits must give problems by index, the same in a second call, and storable; an id must name one problem, none
    of `test` may occur twice, and (`apart`) none may be a training problem too. A text task grades the reference
    answers, nonsense and hostile texts; a task with spaces grades random actions. A grade must be None or finite
    numbers by name, among the ones that `stamps` declares, with `score` in [0, 1], and the same in a second call; some
    answer must get one, and none may make the task raise. Answers that the task lists (`answers`) must get the listed
    scores. Environments are checked by `check_environment`, and an episode played in one is graded. No global generator
    may be drawn from.

    ctx: the context that an environment gets (`bind`). Raises ConformanceError, which names the task.
    """
    require_port("task", task)
    generators = generator_states()
    found = task.spaces()
    pair = isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, spaces.Space) for x in found)
    expected = "expected None for text, or a pair of Gymnasium spaces (observation, action)"
    require(found is None or pair, task, f"its spaces are {found!r:.80}: {expected}")
    shown = {split: _read(task, split, n) for split in ("train", "test")}
    require(shown["train"], task, "has no problems in the split 'train'")
    for split, problems in shown.items():
        wrong = explain_ids(problems, split, once=split == "test")
        require(not wrong, task, wrong)
    if apart:
        _require_apart(task, shown)
    graded = [
        p
        for problems in shown.values()
        for p in problems[:GRADED]
    ]
    grades = [
        _grade(task, p, steps)
        for p in graded
        for steps in _answer(task, p, found, ctx)
    ]
    none = f"graded none of {len(grades)} answers: expected {NAMED}, for some"
    require(any(grades) or ability(task, "ungraded"), task, none)
    for problem in graded:
        _require_listed(task, problem)
    require(generator_states() == generators, task, DRAWS)
    if task.environment(shown["train"][0]) is not None:
        check_environment(task, shown["train"][0], ctx=ctx)


def _read(task: Any, split: str, n: int) -> list[Problem]:
    """Return the first problems of a split, each checked."""
    source: Any = task.problems(split)
    require_port("source", source)
    size = source.size()
    counts = size is None or (isinstance(size, int) and size >= 0)
    require(counts, source, f"its size is {size!r}: expected how many problems there are, or None for no end")
    count = n if size is None else min(n, size)
    problems: list[Any] = [source[i] for i in range(count)]
    again = rebuild(task).problems(split)
    for i, p in enumerate(problems):
        at = f"problem {i} of the split {split!r}"
        require(isinstance(p, Problem), task, f"{at} is {p!r:.60}: expected a Problem")
        named = isinstance(p.id, str) and isinstance(p.task, str) and p.id
        require(named, task, f"{at} has the id {p.id!r} and the task {p.task!r}: expected texts")
        if task.spaces() is None and task.environment(p) is None:
            text = isinstance(p.prompt, str) or (isinstance(p.prompt, tuple) and p.prompt)
            require(text, task, f"{at} has the prompt {p.prompt!r:.60}: expected text, or a tuple of messages")
        try:
            dumps([p.prompt, p.answer, p.solution, dict(p.info), p.start])
        except TypeError as error:
            raise ConformanceError(f"{type(task).__name__}: {at} cannot be stored: {error}") from error
        require_same(_tree(p), _tree(again[i]), task, f"{at} is another one when it is asked for again")
    return problems


def _tree(p: Problem) -> Any:
    return to_tree({name: value for name, value in vars(p).items() if name != "info"} | {"info": dict(p.info)})


def _require_apart(task: Any, shown: Mapping[str, Sequence[Problem]]) -> None:
    """Raise ConformanceError if a held-out problem is a training problem too."""
    for p in shown["test"]:
        for q in shown["train"]:
            known_id = (p.task, p.id) == (q.task, q.id)
            alike = isinstance(p.prompt, str | tuple) and to_tree(_content(p)) == to_tree(_content(q))
            require(not (known_id or alike), task, f"problem {p.id!r} ({p.prompt!r:.40}) is in both splits: expected "
                    "what is held out to be no training problem")  # fmt: skip


def _content(p: Problem) -> Any:
    """Return the content of a problem; two problems may show the same content differently (`solution`)."""
    return [p.prompt, p.answer, p.start]


def _grade(task: Any, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
    """Return the checked grade of an episode, with the rewards that its environment has paid."""
    said = next((s.info.get("text", s.action) for s in reversed(steps) if s.action is not None), None)
    about = f"for {said!r:.60} to problem {problem.id!r:.60}"
    try:
        found, again = task.grade(problem, steps), task.grade(problem, steps)
    except Exception as error:
        message = f"its grade raised {type(error).__name__}: {error}: expected None where it cannot be graded, {about}"
        raise ConformanceError(f"{type(task).__name__}: {message}") from error
    wrong = explain_grade(found, own=True)
    require(not wrong, task, f"{wrong}, {about}")
    paid = {
        name: value
        for step in steps
        for name, value in step.reward.items()
    }
    if found is None:
        return paid
    graded = found or paid or ability(task, "ungraded")
    require(graded, task, f"gave the grade {{}} {about}: expected {NAMED}, or None")
    stamps = declares(task).stamps
    for name, value in found.items():
        known = stamps is None or is_among(f"reward/{name}", stamps)
        require(known, task, f"gave {name!r} {about}, which its `stamps` leave out: {', '.join(stamps or ())}")
        finite = value is not None and bool(np.isfinite(value).all())
        expected = "expected a number; where there is none, leave it out"
        require(finite, task, f"gave {name!r} = {value!r} {about}: {expected}")
    repeated = None if again is None else dict(again)
    require_same(to_tree(dict(found)), to_tree(repeated), task, f"graded otherwise when it was asked again, {about}")
    return {**paid, **found}


def _answer(task: Any, problem: Problem, found: Any, ctx: Any) -> Iterator[list[Step]]:
    """Yield episodes to be graded."""
    if (env := task.environment(problem)) is not None:
        episode = Episodes(env, problem, found, context() if ctx is None else ctx, None)
        yield _play(episode)
    elif found is None:
        for text in (*_references(problem), *HOSTILE):
            yield [_say(problem, text)]
    else:
        act, rng = act_at_random(found[1]), np.random.default_rng(0)
        for _ in range(4):
            yield [Step.of(problem.prompt, np.asarray(act(problem.prompt, rng)))]


def _play(episode: Episodes) -> list[Step]:
    steps: list[Step] = []
    while not episode.over and len(steps) < TURNS:
        seen, parent = episode.seen, len(steps) - 1 if steps else None
        _, rewards, _, _ = episode.step()
        said = {"text": episode.took} if isinstance(episode.took, str) else {}
        action = episode.took if said else np.asarray(episode.took)
        steps.append(Step.of(seen, action, parent=parent, reward=rewards, info=said))
    return [*steps, Step.closing(episode.seen, len(steps) - 1, 0.0)]


def _say(problem: Problem, text: str) -> Step:
    ids = np.array([ord(letter) for letter in text], np.int32)
    return Step.of(problem.prompt, ids, info={"text": text})


def _references(problem: Problem) -> list[str]:
    """Return the texts that the problem names as its answer or solution."""
    found = (problem.answer, problem.solution)
    return list(dict.fromkeys(x for x in found if isinstance(x, str)))


def _require_listed(task: Any, problem: Problem) -> None:
    """Raise ConformanceError unless listed answers get the listed scores."""
    listed = ability(task, "answers")(problem)
    for text, score in zip(listed.texts, listed.scores, strict=True) if listed is not None else ():
        step = _say(problem, text) if isinstance(text, str) else Step.of(problem.prompt, np.asarray(text))
        found = _grade(task, problem, [step]).get("score")
        same = found is not None and abs(float(found) - score) < 1e-6
        listed_so = f"lists {text!r:.40} with the score {score} and grades it {found}"
        require(same, task, f"{listed_so}, in problem {problem.id!r}")
