"""Rows for learned_rewards.py from people's feedback on answers (FineGrainedRLHF), and the graders that read them.

Questions are drawn into three parts: `first`, on which the reward model and the judge are trained, `second`, on which
the process reward model is, and `held`, on which everything is measured. Left out: passages, the edits that people
made, kinds of errors.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FIRST, SECOND = 1, 2  # of a preference; 0 is a tie
LONG = 192  # tokens of a question with its answer
BOTH = 160  # tokens of a question with both answers, which a judge reads
STOP = ". "  # between the sentences of an answer
HELD, PART = 100, 200  # questions
PER_QUESTION = 2  # held-out pairs of a question, at most
ASKED = """Question: {question}

Answer A: {first}

Answer B: {second}

Which answer is better? Reply with A or B, or with C if neither is."""

Row = dict[str, Any]
Counts = Callable[[str], int]  # tokens of a text


def split_questions(data: Path, seed: int = 0) -> dict[str, list[Row]]:
    """Returns the questions of each part."""
    found = json.loads((data / "qa_feedback_dev.json").read_text())
    random.Random(seed).shuffle(found)
    return {"held": found[:HELD], "first": found[HELD : HELD + PART], "second": found[HELD + PART : HELD + 2 * PART]}


def list_pairs(row: Row) -> list[tuple[str, str, float]]:
    """Returns (answer, answer, how likely the first is better): 1, or 0.5 of a tie."""
    answers = [row[f"prediction {k}"] for k in (1, 2, 3, 4)]
    order = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    out = []
    for (a, b), said in zip(order, row["preference"], strict=True):
        better, worse = (b, a) if said == SECOND else (a, b)
        if answers[a] != answers[b]:
            out.append((answers[better], answers[worse], 1.0 if said in (FIRST, SECOND) else 0.5))
    return out


def is_short(count: Counts, *texts: str, most: int = LONG) -> bool:
    return sum(count(t) for t in texts) <= most


def make_pairs(rows: Sequence[Row], count: Counts) -> list[Row]:
    """Returns the pairs of questions, ties with the label 0.5."""
    return [
        {"prompt": row["question"], "chosen": a, "rejected": b, "label": label}
        for row in rows
        for a, b, label in list_pairs(row)
        if is_short(count, row["question"], a) and is_short(count, row["question"], b)
    ]


def draw_held(rows: Sequence[Row], count: Counts, seed: int = 0) -> list[Row]:
    """Returns held-out pairs without ties, so short that the judge reads both answers, in the file's order of each."""
    draw, out = random.Random(seed), []
    for row in rows:
        pairs = [(a, b) for a, b, label in list_pairs(row) if label == 1]
        fit = [pair for pair in pairs if is_short(count, row["question"], *pair, most=BOTH)]
        draw.shuffle(fit)
        out += [{"prompt": row["question"], "chosen": a, "rejected": b} for a, b in fit[:PER_QUESTION]]
    return out


def mark_steps(row: Row) -> tuple[list[str], list[bool]]:
    """Returns the sentences of the first answer, and whether each overlaps no span that people marked."""
    spans = [(e["start"], e["end"]) for e in row["feedback"]["errors"]]
    steps, labels, at = [], [], 0
    for piece in row["prediction 1"].split(STOP):
        end = at + len(piece)
        if piece.strip():
            steps.append(piece.strip())
            labels.append(not any(start < end and at < stop for start, stop in spans))
        at = end + len(STOP)
    return steps, labels


def make_steps(rows: Sequence[Row], count: Counts) -> list[Row]:
    out = []
    for row in rows:
        steps, labels = mark_steps(row)
        if is_short(count, row["question"], row["prediction 1"]):
            out.append({"prompt": row["question"], "steps": steps, "labels": labels})
    return out


def write_verdict_prompt(question: str, first: str, second: str) -> str:
    from shuhari.rewards import verdicts

    return verdicts.fill(ASKED, {"question": question, "first": first, "second": second})


def make_verdicts(rows: Sequence[Row], count: Counts) -> list[Row]:
    """Returns two rows a pair, one in each order."""
    out = []
    for row in rows:
        for a, b, label in list_pairs(row):
            if is_short(count, row["question"], a, b, most=BOTH):
                for first, second, word in ((a, b, "A"), (b, a, "B")):
                    said = word if label == 1 else "C"
                    out.append({"prompt": write_verdict_prompt(row["question"], first, second), "completion": said})
    return out


def make_questions(rows: Sequence[Row]) -> list[Row]:
    """Returns the questions, with the answer that a person wrote, which judges compare with."""
    return [{"prompt": row["question"], "completion": row["gold"].strip(), "gold": row["gold"]} for row in rows]


def overlap(completions: Sequence[str], gold: Sequence[str]) -> list[float]:
    """Words in common with the answer that a person wrote: F1, as SQuAD measures it, without its articles rule."""
    return [_f1(text, truth) for text, truth in zip(completions, gold, strict=True)]


def words(completions: Sequence[str]) -> list[float]:
    """Words of an answer."""
    return [float(len(text.split())) for text in completions]


def _f1(text: str, truth: str) -> float:
    a, b = (Counter(x.strip(".,;:!?\"'()").lower() for x in t.split()) for t in (text, truth))
    same = sum((a & b).values())
    return 2 * same / (a.total() + b.total()) if same else 0.0
