"""Shows how the task `file` reads a file of problems: its columns, splits and lengths, some rows, and the token ids of
a row in sampling and training.

Left out: the quality of rows (right answers, duplicates), and tasks that generate their problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.data import Array, Payload, Problem
from shuhari.loop.wording import encode_answer
from shuhari.ports import ability
from shuhari.tasks.file import File
from shuhari.tasks.lengths import Shown, describe, measure, read_by
from shuhari.tasks.rows import list_texts
from shuhari.tasks.splits import describe_unused, find_split

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
COUNTED = 1000  # rows whose tokens are counted
WORDS = {"prompt": "the prompt", "answer": "the answer", "solution": "the demonstration"}
CONVERSATION = "a conversation: the last turn of the assistant is the demonstration, the rest the prompt"
OWN = {"messages": CONVERSATION, "conversations": CONVERSATION, "chosen": "the better answer of a pair",
       "rejected": "the worse answer of a pair", "id": "the name of the row", "split": "the split"}  # fmt: skip


def report(task: File, n: int = 3, model: Any = None) -> dict[str, Any]:
    """Return a description of a file as plain values. n: number of rows to show; model: counts tokens, if given."""
    problems = [
        (split, p)
        for split in task.counts
        for p in task.problems(split).problems
    ]
    order = {problem: i for i, problem in enumerate(task.places)}
    problems.sort(key=lambda one: order[one[1].id])
    whole = [p for _, p in problems]
    return {
        "rows": len(whole),
        "columns": {name: {"rows": rows, "read_as": _describe_column(task, name, whole)}
                    for name, rows in task.raw_columns.items()},
        "splits": {split: {"rows": task.counts[split], "for": _describe_split(task, split)}
                   for split in sorted(task.counts, key=lambda name: name != find_split("train", task.counts))},
        "notes": [*task.odd, *_list_left(task), *_list_unanswered(task, whole), *_list_given_away(task, whole)],
        "lengths": {"characters": _describe_lengths(whole, task.places, _count_characters),
                    **({} if model is None else _count_tokens(whole, task.places, model))},
        "first": [{"place": task.places[p.id], "split": split, **to_plain(p)} for split, p in problems[:n]],
    }  # fmt: skip


def find_row(task: File, number: int, split: str = "") -> Problem:
    """Return the row on a line of the file (its number in Parquet and JSON arrays). Raises ValueError with the nearest
    row if there is none."""
    places: dict[int, Problem] = {}
    for name in task.counts:
        for p in task.problems(name).problems if not split or find_split(split, task.counts) == name else ():
            at = [word for word in task.places[p.id].replace(",", " ").split() if word.isdigit()]
            places.setdefault(int(at[-1]), p)
    if number not in places:
        near = min(places, key=lambda at: abs(at - number), default=0)
        where = f" of the split {split!r}" if split else ""
        raise ValueError(f"there is no row {number}{where}; the nearest is {near}")
    return places[number]


def show_tokens(problem: Problem, model: Any) -> dict[str, list[dict[str, Any]]]:
    """Return use -> the tokens of a row, each {id, text, trained, special}. Uses: `sampled`, and `trained` or the two
    sides of a pair."""
    names = ability(model, "special")
    asked = model.encode(problem.prompt)
    found = {"sampled": _spell(asked, np.zeros(len(asked), np.bool_), model, names)}
    shown = {"trained": problem.solution, **{side: problem.info.get(side) for side in ("chosen", "rejected")}}
    for name, text in shown.items():
        if isinstance(text, str):
            said: Any = encode_answer(problem.prompt, text, {"policy": model}, "policy")
            mask = np.arange(len(asked) + len(said)) >= len(asked)
            found[name] = _spell(np.r_[asked, said], mask, model, names)
    return found


def _spell(ids: Array, mask: Array, model: Any, names: Mapping[int, str]) -> list[dict[str, Any]]:
    texts = {i: names.get(i) or model.decode(np.asarray([i], np.int32)) for i in set(ids.tolist())}
    return [
        {"id": i, "text": texts[i], "trained": bool(m), "special": i in names}
        for i, m in zip(ids.tolist(), mask.tolist(), strict=True)
    ]


def _describe_column(task: File, name: str, problems: Sequence[Problem]) -> str:
    """Return a phrase on how a column is used."""
    for field, column in task.read_from.items():
        if column == name and name not in ("messages", "conversations"):
            worked = task.format == "gsm8k" and field == "answer"
            return f"{WORDS[field]}{' (what follows the last ####) and the demonstration' if worked else ''}"
    if name in OWN:
        return OWN[name]
    if any(name in p.info for p in problems):
        labels = name == "label" and any(isinstance(p.info.get(name), bool) for p in problems)
        return "whether the demonstration is good" if labels else "a column for rewards (and losses, if a number)"
    return "behind the prompt" if name == "input" else "not read"


def _describe_split(task: File, split: str) -> str:
    if find_split("train", task.counts) == split:
        return "trained on"
    return "held out: evaluation asks for it" if find_split("test", task.counts) == split else "no recipe asks for it"


def _list_left(task: File) -> list[str]:
    told = describe_unused(task.named_splits, ("train", "test"), task.counts)
    return [f"file/{task.path}: {told} (a recipe does with evaluate.split)"] if told else []


def _list_unanswered(task: File, problems: Sequence[Problem]) -> list[str]:
    """Return a hint for a file of prompts with replies, which may be answers; not for pairs, chats and plain text."""
    replies = task.read_from["solution"]
    if not task.unanswered or replies in OWN or any(p.solution is None or not p.prompt for p in problems):
        return []
    told = f"file/{task.path}: no row has an `answer`, which the reward `maths` compares with (pretrained/grpo)"
    return [f"{told}: {task.unanswered}"]


def _list_given_away(task: File, problems: Sequence[Problem]) -> list[str]:
    """Return a hint for a file whose prompts often have the answer, a number, among other numbers."""
    answered = [p for p in problems if _NUMBER.fullmatch(str(p.answer or ""))]
    found = 0
    for p in answered:
        numbers = _NUMBER.findall(" ".join(list_texts(p.prompt)))
        found += len(numbers) > 1 and str(p.answer) in numbers
    if found <= len(answered) / 2:
        return []
    told = f"file/{task.path}: in {found} of {len(problems)} rows the prompt has the answer among other numbers"
    return [f"{told}: the reward `maths` reads the last number of a text, so that one that repeats the prompt may be "
            "right by chance. Ask for an answer in \\boxed{}, or check it by a function of yours"]  # fmt: skip


def _describe_lengths(problems: Sequence[Problem], places: Mapping[str, str], count: Any) -> dict[str, dict[str, Any]]:
    """Return the lengths of prompts and of each kind of reply, with the row of the longest."""
    sizes: dict[str, list[tuple[int, str]]] = {}
    for p in problems:
        for name, part in _list_parts(p):
            sizes.setdefault(name, []).append((count(part), places[p.id]))
    out = {}
    for name, found in sizes.items():
        lengths = np.asarray([size for size, _ in found])
        longest, place = max(found, key=lambda one: one[0])
        out[name] = {"rows": len(found), "least": int(lengths.min()), "median": float(np.median(lengths)),
                     "most of 100": int(np.quantile(lengths, 0.99)), "longest": longest, "at": place}  # fmt: skip
    return out


def _list_shown(problem: Problem) -> tuple[Payload, ...]:
    return tuple(part for name, part in _list_parts(problem) if name not in ("prompt", "answer"))


def _list_parts(problem: Problem) -> Iterator[tuple[str, Payload]]:
    yield "prompt", problem.prompt
    for name, part in (("demonstration", problem.solution), ("answer", problem.answer)):
        if part is not None:
            yield name, str(part)
    for name in ("chosen", "rejected"):
        if isinstance(problem.info.get(name), str):
            yield name, problem.info[name]


def _count_characters(part: Payload) -> int:
    return sum(map(len, list_texts(part))) - (0 if isinstance(part, str) else len(part))  # type: ignore[arg-type]


def _count_tokens(problems: Sequence[Problem], places: Mapping[str, str], model: Any) -> dict[str, Any]:
    """Return token lengths of up to `COUNTED` rows, and the number of all rows that exceed the model's limit."""
    some = problems[:: -(-len(problems) // COUNTED)]
    tell, read = read_by(model)
    found: dict[str, Any] = {"tokens": _describe_lengths(some, places, lambda part: len(read(part)))}
    limit = ability(model, "limit")
    rows = [Shown(places[p.id], tell(p.prompt), _list_shown(p)) for p in problems]
    if limit is not None:
        long = measure(rows, read, limit, 1)
        found["limit"], found["too_long"] = limit, describe(long, rows) if long.long else ""
    return found


def to_plain(problem: Problem) -> dict[str, Any]:
    """Return a row as values for JSON."""
    prompt: Any = problem.prompt
    shown = prompt if isinstance(prompt, str) else [dict(m) for m in prompt]
    return {"id": problem.id, "prompt": shown, "answer": problem.answer, "demonstration": problem.solution,
            **{name: value for name, value in problem.info.items() if value is not None}}  # fmt: skip
