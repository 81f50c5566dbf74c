"""A run wired from components by hand, for sketches of methods: no recipe, the library's own loop.

`stage(...)` gathers the components, `make(stage)` gives the run, `train(run)` yields its reports, one a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.data import EMPTY, Info, Sampling
from shuhari.engines.local import Local
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.parts import Part, Term
from shuhari.models.text.causal import Causal
from shuhari.optimisers.adamw import AdamW
from shuhari.ports import Buffer, Learner, Optimiser, Task, Transform
from shuhari.rollouts.single import Single
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.testing import Components, Role, Run, loop, run_of


def tiny(role: Callable[..., Causal] = Causal, **fields: Any) -> Any:
    """A causal model of 2 layers x 32."""
    return role(hidden=32, layers=2, heads=2, intermediate=64, context=64, **fields)


def part(trains: str | tuple[str, ...] = "policy", optimiser: Optimiser | None = None, **fields: Any) -> Part:
    """A part whose fields that hold a `Term` are its terms; the others are the part's own."""
    terms = {k: v for k, v in fields.items() if isinstance(v, Term)}
    own = {k: v for k, v in fields.items() if k not in terms}
    return Part((trains,) if isinstance(trains, str) else trains, terms, optimiser or AdamW(lr=1e-2), **own)


def stage(
    parts: Mapping[str, Part] = EMPTY,
    *,
    task: Task | None = None,
    models: Mapping[str, Any] = EMPTY,
    buffer: Buffer | None = None,
    transforms: Mapping[str, Transform] = EMPTY,
    learners: Mapping[str, Learner] = EMPTY,
    n: int = 4,
    max_new: int = 3,
    steps: int = 1,
    **others: Any,
) -> Components:
    """A run of one-digit sums by a tiny model, unless others are given. `models`: role -> a model, or a Role where it
    copies another; `others`: fields of `Components`."""
    main = GradientLearner(buffer or Fresh(4), parts, transforms, others.pop("tokens", None)) if parts else None
    task = task or Arithmetic("add", digits=1)
    roles = {r: m if isinstance(m, Role) else Role(m) for r, m in (models or {"policy": tiny()}).items()}
    defaults: dict[str, Any] = {
        "name": "sketch", "budget": {"steps": steps}, "task": task, "models": roles, "engine": Local(),
        "curriculum": Sequential(), "rollout": Single(), "n": n, "sampling": Sampling(max_new=max_new), "tokens": None,
        "weights": {"score" if task.spaces() is None else "task": 1.0},
        "learners": {**({"main": main} if main else {}), **learners},
    }  # fmt: skip
    return Components(**{**defaults, **others})


def make(*stages: Components, seed: int = 0) -> Run:
    """The run of stages made by hand."""
    torch.set_num_threads(1)
    return run_of(*stages, seed=seed)


def train(run: Run) -> Iterator[Info]:
    """The reports of the run, by the library's loop."""
    return loop(run)


def weights(run: Run, role: str = "policy") -> torch.Tensor:
    """[n] all weights of a role, copied."""
    return torch.cat([p.detach().flatten().clone() for p in run.ctx.models[role].module.parameters()])
