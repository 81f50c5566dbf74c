"""The game of hiding: who is at turn, what each sees, what is paid, and a run that trains both players."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from pennies import Pennies

from shuhari.config.recipe import Recipe
from shuhari.data import Problem, Request, Sampling
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.needs import Trace
from shuhari.rollouts.episode import Episode
from shuhari.testing import check_recipe, context

TOKENS = character_tokenizer(Pennies().alphabet)


class Reads:
    encode, decode = staticmethod(TOKENS.encode), staticmethod(TOKENS.decode)


class Script:
    """An engine that says what is written for it, in turn."""

    def __init__(self, said: str) -> None:
        self.said, self.heard = list(said), list[tuple[str, str]]()

    async def sample(self, role: str, seen: Any, sampling: Any, n: int = 1, *, key: Any) -> list[Trace]:
        text = self.said.pop(0)
        self.heard.append((role, TOKENS.decode(seen)))
        return [Trace(np.asarray(TOKENS.encode(text)), np.array([-1.0], np.float32), 0, {"text": text})]


def play(said: str) -> tuple[Any, list[tuple[str, str]]]:
    script, task = Script(said), Pennies()
    ctx = context(engine=script, task=task, models={"hider": Reads(), "seeker": Reads()})
    request = Request(Problem("pennies", "0", "h:"), 1, Sampling(), key="k")
    (t,) = asyncio.run(Episode(acts=("hider", "seeker")).group(request, ctx))
    return t, script.heard


def test_each_is_asked_at_his_turn_and_sees_what_he_may() -> None:
    t, heard = play("31?>3")
    assert heard == [("hider", "h:"), ("seeker", "s:"), ("seeker", "s:1."), ("hider", "h:3.1"), ("seeker", "s:1>")]
    assert [dict(s.reward) for s in t.steps] == [{}, {}, {}, {"honest": 1.0}, {"found": 1.0}, {}]


def test_a_recipe_that_trains_both(tmp_path: Path) -> None:
    small: dict[str, Any] = {"use": "causal", "hidden": 16, "layers": 1, "heads": 2}
    players = ("hider", "seeker")
    collect: dict[str, Any] = {}
    for role in players:
        collect[role] = {"use": "keep_matching", "column": "role", "equals": role, "of": "rl", "stream": role}
        collect[f"{role}_advantage"] = {"use": "advantage", "stream": role, "into": f"advantage_{role}"}
    tree: dict[str, Any] = {
        "steps": 2, "models": dict.fromkeys(players, small), "collect": collect, "buffer": {"size": 2},
        "task": {"name": f"{Path(__file__).with_name('pennies.py')}:Pennies"},
        "rollout": {"use": "episode", "acts": list(players), "n": 4, "max_steps": 8, "sampling": {"max_new": 1}},
        "reward": {"weights": {"found": 1.0, "quick": 1.0, "honest": 0.5}},
        "part": {role: {"optimiser": {"lr": 1e-3}, "terms": {"loss": {
            "use": "clip", "role": role, "stream": role, "advantage": f"advantage_{role}"}}} for role in players},
    }  # fmt: skip
    check_recipe(Recipe("pennies", tree), tmp_path)
