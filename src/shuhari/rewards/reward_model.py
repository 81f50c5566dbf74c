"""A trained reward model as a grader: a directory that `AutoModelForSequenceClassification` reads, with one output.

Left out: several labels; adapters; models that score single steps (use a value head such as `causal_value`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shuhari.bounds import Length, check
from shuhari.data import Trajectory
from shuhari.kernel.registry import register
from shuhari.models.devices import find_device
from shuhari.models.text import classifier
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text


class TooLong(ValueError):
    """A text with more tokens than the model reads."""


class NoScore(ValueError):
    """A score that is not a finite number."""


@register("reward", "reward_model")
@dataclass
class RewardModel:
    """A trained reward model as a grader: the score of a Hugging Face classifier with one output.

    Its own tokenizer encodes the text: a conversation by its chat template, a text prompt with the completion and the
    end token after it. Samples without a decision are ungraded; so are texts longer than the model reads and scores
    that are not finite, which are counted as `failed_graders` and shown. Raises ValueError before a run begins if the
    directory is no such model.
    """

    path: str = field(default="")
    """Directory of the model (safetensors only), as `shuhari export RUN DIR --reward-model` writes, or a hub id;
    required."""
    rows: Length = 8
    """Number of texts in one forward pass; more are faster and take more memory."""
    device: str = "cpu"
    """Device of the reward model: `cpu`, `cuda`, `cuda:<number>` or `mps`."""
    name: str = "reward_model"
    """Name of the grade, so that its column is `reward/<name>`."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        if not self.path:
            raise ValueError("reward_model: a path is missing: expected a directory, as export --reward-model writes")
        classifier.find(self.path)

    @cached_property
    def model(self) -> classifier.Classifier:
        """The model, loaded with the first text."""
        found = classifier.load(self.path)
        found.hf.to(find_device(self.device))
        return found

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            (t.request.problem.prompt, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        grades: list[Mapping[str, float] | None] = [None] * len(leaves)
        texts: dict[int, list[int]] = {}
        for i, (prompt, steps) in enumerate(leaves):
            if any(s.action is not None for s in steps):
                ids = self.model.encode(prompt, answer_text(steps))
                if len(ids) <= self.model.limit:
                    texts[i] = ids
                else:
                    error: ValueError = TooLong(f"{len(ids)} tokens: the model reads {self.model.limit}")
                    ctx.record_failure("failed_graders", error, f"reward {self.name!r}")
        for i, score in zip(texts, self.model.score(list(texts.values()), self.rows), strict=True):
            if math.isfinite(score):
                grades[i] = {self.name: score}
            else:
                error = NoScore(f"a text of {len(texts[i])} tokens scores {score}: expected a finite number")
                ctx.record_failure("failed_graders", error, f"reward {self.name!r}")
        return grades
