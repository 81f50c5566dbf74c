"""A text game with two tools: look prices up and add them, then answer a question about their sum.

    pen+cup?          the question: what do they cost together?
    find pen          a turn of the policy
    17                the reply of the shop
    find cup
    25
    add 17 25
    42
    say 42            the answer, which ends the game

Only the shop has the prices, which belong to the problem, so nobody can answer without its tools. Demonstrations may
teach to guess: a share `guess` of them look up too little and answer an invented sum. RL never sees demonstrations,
only right or wrong. Left out: units, quantities, and tools that fail at random.

Held-out problems are disjoint from training problems by content: the set of items with their prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Payload, Problem, Status, Step
from shuhari.kernel.registry import register
from shuhari.tasks.source import Splits, Stream, draw_item, last_decision

ITEMS = tuple("pen cup hat bag box jar tin key map fan rug net bow lid pan mug".split())
LINE = re.compile(r"find (?P<item>[a-z]{1,9})|add (?P<a>[0-9]{1,9}) (?P<b>[0-9]{1,9})|say (?P<n>[0-9]{1,9})", re.ASCII)
HELP = "? find an item, add two numbers or say one\n"  # the reply to a malformed line; it never repeats the line


@register("task", "shop")
@dataclass
class Shop:
    """Sums of prices that must be looked up: a text game of several turns with two tools, for the rollout `episode`."""

    items: Annotated[int, Bounds(2, 8)] = 2
    """Number of items in a question; each must be looked up."""
    digits: Annotated[int, Bounds(1, 4)] = 2
    """Number of digits of each price; the first is not 0."""
    guess: Share = 0.0
    """Share of the demonstrations that guess a sum without looking up every price; 0 demonstrates perfect games."""
    turns: Length = 16
    """Number of lines that the policy may write; the game is truncated after them."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def alphabet(self) -> str:
        """The characters of questions, replies of the shop, and demonstrations."""
        return "\n abcdefghijklmnopqrstuvwxyz0123456789+?,"

    @cached_property
    def problems(self) -> Splits:
        """The problems, as `Splits`; `info` holds the prices."""
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the last line gives the right sum (leading zeros are allowed), else 0.0."""
        line = LINE.fullmatch(to_line(last_decision(steps).info.get("text", "")))
        n = line["n"] if line else None
        return {"score": float(n is not None and int(n) == int(str(problem.answer)))}

    def environment(self, problem: Problem) -> Counter:
        return Counter(self.turns)

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("shop", self.seed, split, index)
        content, prices = draw_item(split, self.test_fraction, lambda: self._draw(stream), "shop")
        total, ids = str(sum(prices.values())), ",".join(f"{k}={v}" for k, v in prices.items())
        solution = self._play_badly(prices, stream) if stream.uniform() < self.guess else _play_perfectly(prices)
        return content, Problem("shop", ids, f"{'+'.join(prices)}?\n", total, solution, {"prices": prices})

    def _draw(self, stream: Stream) -> tuple[str, dict[str, int]]:
        """Returns content, and item -> price in the order of the question."""
        left, prices = list(ITEMS), dict[str, int]()
        for _ in range(self.items):
            prices[left.pop(stream.below(len(left)))] = self._price(stream)
        return f"prices:{sorted(prices.items())}", prices

    def _price(self, stream: Stream) -> int:
        low = 10 ** (self.digits - 1) if self.digits > 1 else 1
        return low + stream.below(10**self.digits - low)

    def _play_badly(self, prices: Mapping[str, int], stream: Stream) -> tuple[str, ...]:
        """Returns a poor game: it looks up only the first few items, or none, and sums up with invented prices for the
        rest."""
        known = dict(list(prices.items())[: stream.below(self.items)])
        total = sum(known.values()) + sum(self._price(stream) for _ in range(self.items - len(known)))
        return (*(f"find {item}" for item in known), f"say {total}")


class Counter:
    """One game: replies to each line. It ends with `say`, or after `turns` lines."""

    def __init__(self, turns: int) -> None:
        self.turns, self.t, self.ended = turns, 0, True
        self.prices: dict[str, int] = {}
        self.reply = ""

    def reset(self, problem: Problem) -> Payload:
        """Returns the question; for a problem with a `start`, the last reply before it."""
        if problem.start is not None:
            return self.restore(problem.start)
        self.prices, self.t, self.ended = dict(problem.info["prices"]), 0, False
        self.reply = str(problem.prompt)
        return self.reply

    def step(self, action: Any) -> tuple[Payload, dict[str, float], Status | None]:
        """Returns (reply, {}, the status if the game ended) for one line; the task's grade is the only reward. Raises
        RuntimeError after the end."""
        if self.ended:
            raise RuntimeError("the game has ended: reset before the next line")
        found = LINE.fullmatch(to_line(action))
        self.t += 1
        if found is not None and found["n"] is not None:
            self.ended, self.reply = True, ""
            return self.reply, {}, Status.FINISHED
        self.reply, self.ended = self._answer(found), self.t >= self.turns
        return self.reply, {}, Status.TRUNCATED if self.ended else None

    def _answer(self, found: re.Match[str] | None) -> str:
        if found is None:
            return HELP
        if found["item"] is None:
            return f"{int(found['a']) + int(found['b'])}\n"
        price = self.prices.get(found["item"])
        return "? no such item\n" if price is None else f"{price}\n"

    def snapshot(self) -> Payload:
        return {"prices": dict(self.prices), "t": self.t, "ended": self.ended, "told": self.reply}

    def restore(self, snapshot: Payload) -> Payload:
        """Returns to a snapshot; returns the last reply before it."""
        s: Any = snapshot
        self.prices = {str(k): int(v) for k, v in s["prices"].items()}
        self.t, self.ended, self.reply = int(s["t"]), bool(s["ended"]), str(s["told"])
        return self.reply


def to_line(action: Any) -> str:
    """Returns the text of an action, without its closing newline; anything but text is an empty line."""
    return action.removesuffix("\n") if isinstance(action, str) else ""


def _play_perfectly(prices: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the lines of a perfect game: look every price up, add one after the other, and give the sum."""
    total, *rest = prices.values()
    lines = [f"find {item}" for item in prices]
    for price in rest:
        lines.append(f"add {total} {price}")
        total += price
    return (*lines, f"say {total}")
