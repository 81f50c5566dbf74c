"""Held-out accuracy of learned rewards by transformers, and whether it gives the numbers that the run itself gives.

The texts are written and encoded by the export's own tokenizer and chat template. Left out: training
(learned_rewards.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from learned_rows import STOP, Row, write_verdict_prompt

from shuhari import testing
from shuhari.engines.local import Local
from shuhari.loop.opening import open_models
from shuhari.needs import role_model
from shuhari.rewards.steps import split_steps

Found = dict[str, Any]
WORDS = ("A", "B", "C")


class Theirs:
    """An export, loaded by transformers."""

    def __init__(self, place: Path, kind: str) -> None:
        import transformers

        auto = getattr(transformers, f"AutoModelFor{kind}")
        self.hf = auto.from_pretrained(place, dtype=torch.float32).eval()
        self.words = transformers.AutoTokenizer.from_pretrained(place)

    def ask(self, prompt: str) -> str:
        turn = [{"role": "user", "content": prompt}]
        return str(self.words.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    def encode(self, text: str) -> list[int]:
        return list(self.words(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[...] of one text."""
        return self.hf(input_ids=torch.tensor([ids])).logits[0]

    def score(self, prompt: str, said: str) -> float:
        """The score of an answer. The head of transformers has no bias: the run's is `score_offset` of the export."""
        logits = self.logits(self.encode(f"{self.ask(prompt)}{said}{self.words.eos_token}"))
        return float(logits[0]) + self.hf.config.score_offset

    def score_steps(self, prompt: str, said: str) -> list[float]:
        """The score of each sentence, at the token that holds its last character."""
        begin, text = self.ask(prompt), f"{said}{self.words.eos_token}"
        given = self.words(begin + text, add_special_tokens=False, return_offsets_mapping=True)
        logits = self.logits(given["input_ids"])
        out = []
        for end in split_steps(said, STOP):
            last = len(begin) + end - 1
            place = next(i for i, (a, b) in enumerate(given["offset_mapping"]) if a <= last < b)
            out.append(float(logits[place, 1] - logits[place, 0]))
        return out

    def weigh(self, prompt: str) -> list[float]:
        """The log-probability of each verdict."""
        shares = self.logits(self.encode(self.ask(prompt)))[-1].log_softmax(-1)
        return [float(shares[self.encode(word)[0]]) for word in WORDS]


class Ours:
    """The model of a run, scored by the engine."""

    def __init__(self, run: Path, role: str) -> None:
        self.role = role
        models, _ = open_models(run, None)
        self.ctx = testing.context(models={role: role_model(models, role)}, engine=Local())
        self.ctx.serve()

    def column(self, prompt: str, said: str, name: str, closed: bool = True) -> Any:
        context = self.ctx.encode(prompt, self.role)
        action = self.ctx.encode_answer(prompt, said, self.role) if closed else self.ctx.encode_text(said, self.role)
        return self.ctx.wait(self.ctx.engine.score(self.role, context, action, [name]))[name], action


def measure_scores(run: Path, place: Path, held: Sequence[Row], checked: int) -> Found:
    """A reward model of answers on held-out pairs."""
    theirs, ours = Theirs(place, "SequenceClassification"), Ours(run, "reward")
    scores = [[theirs.score(p["prompt"], p[side]) for side in ("chosen", "rejected")] for p in held]
    apart = [
        abs(float(ours.column(p["prompt"], p[side], "value")[0][-1]) - x)
        for p, pair in zip(held[:checked], scores, strict=False)
        for side, x in zip(("chosen", "rejected"), pair, strict=True)
    ]
    return _rate_pairs(scores) | {"loads_as": type(theirs.hf).__name__, "furthest_apart": max(apart), "on": len(apart)}


def measure_steps(run: Path, place: Path, held: Sequence[Row], steps: Sequence[Row], checked: int) -> Found:
    """A process reward model on labelled sentences; and on pairs, by the mean probability of an answer's sentences."""
    from shuhari.rewards.steps import find_steps

    theirs, ours = Theirs(place, "TokenClassification"), Ours(run, "reward")
    scores = [theirs.score_steps(r["prompt"], STOP.join(r["steps"])) for r in steps]
    apart = []
    for r, found in zip(steps[:checked], scores, strict=False):
        value, ids = ours.column(r["prompt"], STOP.join(r["steps"]), "value")
        places = find_steps(ids, lambda some: ours.ctx.text(some, "reward"), STOP)
        apart += [abs(float(value[k]) - x) for k, x in zip(places, found, strict=True)]
    flat = [x for found in scores for x in found]
    labels = [y for r in steps for y in r["labels"]]
    good, bad = ([x for x, y in zip(flat, labels, strict=True) if y is said] for said in (True, False))
    area = statistics.mean((a > b) + 0.5 * (a == b) for a in good for b in bad)
    sides = [[theirs.score_steps(p["prompt"], p[side]) for side in ("chosen", "rejected")] for p in held]
    by_mean = [[statistics.mean(map(_squash, found)) for found in both] for both in sides]
    right = statistics.mean((x > 0) == y for x, y in zip(flat, labels, strict=True))
    return {"sentences": len(labels), "accuracy": right, "positives": statistics.mean(labels), "area_under_curve": area,
            "pairs": _rate_pairs(by_mean), "loads_as": type(theirs.hf).__name__, "furthest_apart": max(apart),
            "on": len(apart)}  # fmt: skip


def measure_judge(run: Path, place: Path, held: Sequence[Row], checked: int) -> Found:
    """A judge on held-out pairs, each in both orders."""
    theirs, ours = Theirs(place, "CausalLM"), Ours(run, "policy")
    orders = [(p["prompt"], (p["chosen"], p["rejected"]), (p["rejected"], p["chosen"])) for p in held]
    asked = [[write_verdict_prompt(question, *pair) for pair in both] for question, *both in orders]
    weighed = [[theirs.weigh(text) for text in both] for both in asked]
    apart = [
        abs(float(ours.column(text, word, "log_prob", closed=False)[0][0]) - x)
        for both, found in zip(asked[: checked // 2], weighed, strict=False)
        for text, shares in zip(both, found, strict=True)
        for word, x in zip(WORDS, shares, strict=True)
    ]
    verdicts = [[WORDS[max(range(3), key=shares.__getitem__)] for shares in found] for found in weighed]
    wins = {("A", "B"): 1.0, ("B", "A"): 0.0}  # of the better answer; anything else is half of it
    by_share = [[first[0] - first[1], second[0] - second[1]] for first, second in weighed]
    return {"pairs": len(held), "accuracy": statistics.mean(wins.get((a, b), 0.5) for a, b in verdicts),
            "same_in_both_orders": statistics.mean((a, b) in wins for a, b in verdicts),
            "says_A": statistics.mean(x == "A" for both in verdicts for x in both),
            "by_log_probability": _rate_pairs(by_share), "loads_as": type(theirs.hf).__name__,
            "furthest_apart": max(apart), "on": len(apart)}  # fmt: skip


def _rate_pairs(scores: Sequence[Sequence[float]]) -> Found:
    """The share of pairs in their order, equal scores as half."""
    return {"pairs": len(scores), "accuracy": statistics.mean((a > b) + 0.5 * (a == b) for a, b in scores),
            "margin": statistics.mean(a - b for a, b in scores)}  # fmt: skip


def _squash(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float64).sigmoid())
