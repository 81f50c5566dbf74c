"""A scripted policy and a context for rollouts that hint, ask again, or demonstrate."""

import asyncio
from types import SimpleNamespace

import numpy as np

from shuhari import testing
from shuhari.data import Problem, Request, Sampling
from shuhari.engines.local import Local
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.needs import Trace

SOLUTION = "abcdefgh"


class Pupil:
    """Says `y` where `knows(hint length, noise)`, else `n`; after the two letters of the prompt comes the hint."""

    def __init__(self, knows) -> None:
        text = character_tokenizer("abcdefghyn")
        self.encode, self.decode, self.end, self.knows = text.encode, text.decode, text.end, knows
        self.seen = []

    def sample(self, contexts, sampling, *, noise):
        said = []
        for c, u in zip(contexts, noise.uniform(0).tolist(), strict=True):
            self.seen.append(self.decode(np.array(c, np.int32))[2:])
            letter = "y" if self.knows(len(c) - 2, u) else "n"
            action = np.array([*self.encode(letter), self.end], np.int32)
            said.append(Trace(action, np.full(2, -0.5, np.float32), 0, {"ended": True}))
        return said


def context(model, grade=None, **rewards):
    """A context whose grade is 1 for `y`; `rewards`: more, the same for every sample."""
    engine, said = Local(), grade or (lambda text: {"score": float("y" in text)})
    task = SimpleNamespace(
        environment=lambda problem: None, grade=lambda problem, steps: {**said(steps[-1].info["text"]), **rewards}
    )
    ctx = testing.context(engine=engine, task=task, models={"policy": model, "other": model}, step=4)
    ctx.serve()
    return ctx


def request(n=4, solution=SOLUTION, **fields):
    return Request(Problem("t", "p", "ab", "y", solution), n, Sampling(max_new=4), key="k", **fields)


def collected(rollout, ctx, asked=None):
    return asyncio.run(rollout.group(asked or request(), ctx))
