"""A game of several turns of your own, with two tools: look at a digit of a safe's code, and open it.

A problem's `solution` holds the turns of a demonstration, and the warm-up plays them in the environment.

    python examples/own_env.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import shuhari
from shuhari.data import Problem, Status, Step
from shuhari.tasks.source import Listed, is_held_out, last_decision


@dataclass
class Safe:
    """A code of two digits: `a` and `b` show one each, `=47` opens. A tenth of the codes is held out, by a hash."""

    turns: int = 4
    alphabet = "0123456789ab=?\n"

    def problems(self, split: str) -> Listed:
        codes = [f"{n:02d}" for n in range(100) if is_held_out(str(n), 0.1) == (split == "test")]
        return Listed([Problem("safe", c, "?\n", c, solution=("a", "b", f"={c}")) for c in codes])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, float]:
        return {"score": float(last_decision(steps).info["text"] == f"={problem.answer}")}

    def environment(self, problem: Problem) -> "Game":
        return Game(self.turns)

    def spaces(self) -> None:  # text
        return None


class Game:
    """One episode. What a model says is hostile text: whatever it is, the game goes on."""

    def __init__(self, turns: int) -> None:
        self.left, self.code = turns, ""

    def reset(self, problem: Problem) -> str:
        self.code = str(problem.answer)
        return str(problem.prompt)

    def step(self, action: str) -> tuple[str, dict[str, float], Status | None]:
        """(what the policy reads next, rewards, how the episode ended if it did)."""
        self.left -= 1
        if action.startswith("="):
            return "", {}, Status.FINISHED
        told = self.code["ab".index(action)] if action in ("a", "b") else "?"
        return f"{told}\n", {}, None if self.left else Status.TRUNCATED


def main(warm_up: int = 100, steps: int = 16, folder: Path = Path("runs/own_env")) -> shuhari.Trained:
    """A small model, by imitation and then GRPO over whole games."""
    settings = {"task": {"name": f"{Path(__file__).resolve()}:Safe"}, "models.policy": {"hidden": 48, "layers": 2}}
    settings |= {"rollout": {"use": "episode", "n": 16, "sampling": {"max_new": 4}}, "evaluate": {"samples": 8}}
    settings |= {"stage.warm-up.steps": warm_up, "stage.warm-up.buffer.size": 32, "buffer.size": 16}
    return shuhari.train("baselines/grpo", folder, steps=steps, **settings, **{"part.policy.optimiser.lr": 2e-3})


if __name__ == "__main__":
    run = main()
    print(f"{run.path}: held-out score {run.summary['before']['mean']:.2f} -> {run.summary['after']['mean']:.2f}")
