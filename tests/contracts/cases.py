"""What the model contract is checked on: every model lists itself here, once.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from shuhari.data import Ramp, Sampling
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.causal import Causal
from shuhari.models.critics import DiscreteQ
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy
from shuhari.models.tabular import Tabular


@dataclass(frozen=True)
class Case:
    """A policy and how to ask it. `contexts(n)`: n contexts as its `sample` takes them; `settings`: sampling settings
    under which everything it may do has a probability; `shake`: by how much random weights move off the initial ones,
    and `nudge`: how far a second policy is from the first; `rows`: how many samples a statistical check may draw."""

    name: str
    make: Callable[[], Any]
    task: Any
    contexts: Callable[[int], Any]
    settings: tuple[Sampling, ...] = (Sampling(),)
    shake: float = 0.3
    nudge: float = 0.1
    rows: int = 3_000


def task(seen: Any, does: Any) -> Any:
    """As much of a task as `build` reads."""
    return SimpleNamespace(spaces=lambda: (seen, does))


def _generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def states(n: int) -> torch.Tensor:
    return torch.randint(0, 6, (n,), generator=_generator())


def observations(n: int) -> torch.Tensor:
    return torch.randn(n, 3, generator=_generator())


def texts(n: int) -> list[np.ndarray]:
    """Token ids of one to five characters, some of them the same text."""
    rng = np.random.default_rng(5)
    return [rng.integers(2, 5, size).astype(np.int32) for size in rng.integers(1, 6, n)]


OBSERVED = spaces.Box(-np.inf, np.inf, (3,))
SIX, FOUR, LATE = spaces.Discrete(6), spaces.Discrete(4), spaces.Discrete(4, start=2)
BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
WORDS = SimpleNamespace(alphabet="abc")
SOFT = (Sampling(), Sampling(temperature=0.7), Sampling(epsilon=0.2), Sampling(temperature=1.5, epsilon=1.0))

CASES = [
    Case("tabular", Tabular, task(SIX, FOUR), states, SOFT),
    Case("categorical", lambda: CategoricalPolicy((16,)), task(OBSERVED, LATE), observations, SOFT),
    Case("categorical-one-hot", lambda: CategoricalPolicy((16,), orthogonal=False), task(SIX, FOUR), states),
    Case("gaussian", lambda: GaussianPolicy((16,), log_std=-0.5), task(OBSERVED, BOUNDED), observations),
    Case(
        "squashed",
        lambda: SquashedPolicy((16,)),
        task(OBSERVED, BOUNDED),
        observations,
        (Sampling(), Sampling(epsilon=0.2), Sampling(epsilon=1.0)),
    ),
    Case(
        "q_discrete",
        lambda: DiscreteQ((16,)),
        task(OBSERVED, FOUR),
        observations,
        (Sampling(epsilon=0.3), Sampling(epsilon=1.0)),
    ),
    Case(
        "causal",
        lambda: Causal(hidden=16, layers=2, heads=2, intermediate=24),
        WORDS,
        texts,
        (
            Sampling(max_new=4),
            Sampling(max_new=4, temperature=Ramp(1.5, 0.5, over=3), stop=("ab",)),
            Sampling(max_new=4, top_p=0.8, top_k=3),
            Sampling(max_new=4, ban=(1,)),
        ),
        nudge=0.03,  # beyond, ratios of whole texts have too heavy a tail for a mean over so few rows
        rows=4_000,
    ),
    Case(  # contexts of one to five tokens, and room for six: each row is cut at a length of its own
        "causal-near-its-limit",
        lambda: Causal(architecture="gpt2", hidden=16, layers=2, heads=2, context=6),
        WORDS,
        texts,
        (Sampling(max_new=4), Sampling(max_new=40, top_p=0.9, temperature=1.5)),
        nudge=0.03,
    ),
]
