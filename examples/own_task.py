"""A text task of your own: sorting digits, with demonstrations, a split by content, and a grade.

python examples/own_task.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import shuhari
from shuhari.data import Problem, Step
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, draw_distinct, draw_item


@dataclass
class Sort:
    """`312:` -> `123`, right or wrong. The fields are the task's settings in a recipe."""

    digits: int = 3
    seed: int = 0
    alphabet = "0123456789:"  # of models made from scratch: what may be read and written

    def problems(self, split: str) -> Generated | Listed:
        """A problem is a function of (seed, split, index); a hash of its content says which split it is in."""
        test = split == "test"
        if test:
            return draw_distinct(lambda i: self._item(split, i), 64)
        return Generated(lambda i: self._item(split, i)[1])

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream, top = Stream("sort", self.seed, split, index), 10**self.digits
        text, _ = draw_item(split, 0.1, lambda: (f"{stream.below(top):0{self.digits}d}", None), "sort")
        answer = "".join(sorted(text))
        return text, Problem("sort", text, f"{text}:", answer, solution=answer)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, float]:
        return {"score": float(answer_text(steps) == problem.answer)}

    environment = spaces = lambda self, problem=None: None  # one answer, no turns; text, no spaces


def main(warm_up: int = 60, steps: int = 12, folder: Path = Path("runs/own_task")) -> shuhari.Trained:
    """A small model, by imitation and then GRPO."""
    settings = {"task": {"name": f"{Path(__file__).resolve()}:Sort"}, "models.policy": {"hidden": 48, "layers": 2}}
    settings |= {"stage.warm-up.steps": warm_up, "stage.warm-up.buffer.size": 64, "evaluate": {"n": 32, "samples": 8}}
    return shuhari.train("baselines/grpo", folder, steps=steps, **settings, **{"part.policy.optimiser.lr": 1e-3})


if __name__ == "__main__":
    run = main()
    print(f"{run.path}: held-out score {run.summary['before']['mean']:.2f} -> {run.summary['after']['mean']:.2f}")
