"""Models in spaces and under settings that no recipe has, for the model contract. A new model need not be here: each is
checked as the smallest recipe has it, too (`make_case`).

Axes: `B` rows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from registry_examples import Composed

from shuhari.data import Ramp, Sampling
from shuhari.methods.diffusion.rlg.guided import Guided
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.chain import ChainPolicy
from shuhari.models.composite import Gated, Residual
from shuhari.models.critics import DiscreteQ
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy
from shuhari.models.normaliser import moments
from shuhari.models.product import Product
from shuhari.models.readout import Bins
from shuhari.models.steering import Filtered, Steered
from shuhari.models.tabular import Tabular
from shuhari.models.text.causal import Causal
from shuhari.models.text.lora import Lora
from shuhari.testing import ModelCase as Case


def task(seen: Any, does: Any) -> Any:
    """As much of a task as `build` reads."""
    return SimpleNamespace(spaces=lambda: (seen, does))


def normalised(cls: Any) -> Any:
    """A model whose moments have seen rows far from the origin."""

    class Seasoned(cls):  # type: ignore[misc]
        def build(self, task: Any) -> None:
            super().build(task)
            self._inputs.moments.take(moments(3 + 2 * torch.randn(50, 3, generator=_generator())))

    return Seasoned((16,), normalise=True)


def _generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def states(n: int) -> torch.Tensor:
    return torch.randint(0, 6, (n,), generator=_generator())


def observations(n: int) -> torch.Tensor:
    return torch.randn(n, 3, generator=_generator())


def images(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 5, 5, 3), generator=_generator(), dtype=torch.uint8)


def mixed(n: int) -> dict[str, torch.Tensor]:
    """A Dict with every kind of part."""
    g = _generator()
    return {
        "bits": torch.randint(0, 2, (n, 3), generator=g, dtype=torch.int8),
        "inner/place": torch.randint(0, 4, (n,), generator=g) + 2,
        "inner/pair": torch.randint(0, 2, (n, 2), generator=g),
        "seen": torch.randn(n, 3, generator=g),
        "view": images(n),
    }


def masked(n: int) -> dict[str, torch.Tensor]:
    """One to four of four actions are allowed."""
    mask = torch.rand(n, 4, generator=_generator()) < 0.5
    mask[torch.arange(n), torch.arange(n) % 4] = True
    return {"observation": observations(n), "action_mask": mask.to(torch.int8)}


def masked_pairs(n: int) -> dict[str, torch.Tensor]:
    """Of two choices, among two and among three."""
    mask = torch.rand(n, 5, generator=_generator()) < 0.5
    mask[torch.arange(n), torch.arange(n) % 2] = True
    mask[torch.arange(n), 2 + torch.arange(n) % 3] = True
    return {"observation": observations(n), "action_mask": mask.to(torch.int8)}


def texts(n: int) -> list[np.ndarray]:
    """Token ids of one to five characters, some of them the same text."""
    rng = np.random.default_rng(5)
    return [rng.integers(2, 5, size).astype(np.int32) for size in rng.integers(1, 6, n)]


OBSERVED = spaces.Box(-np.inf, np.inf, (3,))
SIX, FOUR, LATE = spaces.Discrete(6), spaces.Discrete(4), spaces.Discrete(4, start=2)
BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
POINT = spaces.Box(-np.inf, np.inf, (2,))
IMAGE = spaces.Box(0, 255, (5, 5, 3), np.uint8)
MIXED = spaces.Dict(
    {
        "bits": spaces.MultiBinary(3),
        "inner/place": spaces.Discrete(4, start=2),
        "inner/pair": spaces.MultiDiscrete([2, 2]),
        "seen": OBSERVED,
        "view": IMAGE,
    }
)
MASKED = spaces.Dict({"observation": OBSERVED, "action_mask": spaces.MultiBinary(4)})
PAIR = spaces.MultiDiscrete([2, 3], start=[1, 0])
MASKED_PAIR = spaces.Dict({"observation": OBSERVED, "action_mask": spaces.MultiBinary(5)})
WORDS = SimpleNamespace(alphabet="abc", spaces=lambda: None)
SOFT = (Sampling(), Sampling(temperature=0.7), Sampling(epsilon=0.2), Sampling(temperature=1.5, epsilon=1.0))

CASES = [
    Case("tabular", Tabular, task(SIX, FOUR), states, SOFT),
    Case("categorical", lambda: CategoricalPolicy((16,)), task(OBSERVED, LATE), observations, SOFT),
    Case("categorical-one-hot", lambda: CategoricalPolicy((16,), orthogonal=False), task(SIX, FOUR), states),
    Case("categorical-dict", lambda: CategoricalPolicy((16,)), task(MIXED, FOUR), mixed, crowd=5_000),
    Case("categorical-image", lambda: CategoricalPolicy((16,)), task(IMAGE, FOUR), images, crowd=5_000),
    Case("categorical-masked", lambda: CategoricalPolicy((16,)), task(MASKED, LATE), masked, SOFT),
    Case("categorical-joint", lambda: CategoricalPolicy((16,)), task(OBSERVED, PAIR), observations, SOFT),
    Case("categorical-bits", lambda: CategoricalPolicy((16,)), task(OBSERVED, spaces.MultiBinary(3)), observations),
    Case("categorical-joint-masked", lambda: CategoricalPolicy((16,)), task(MASKED_PAIR, PAIR), masked_pairs, SOFT),
    Case("categorical-normalised", lambda: normalised(CategoricalPolicy), task(OBSERVED, FOUR), observations),
    Case("gaussian-normalised", lambda: normalised(GaussianPolicy), task(MIXED, BOUNDED), mixed, crowd=5_000),
    Case(
        "squashed",
        lambda: SquashedPolicy((16,)),
        task(OBSERVED, BOUNDED),
        observations,
        (Sampling(), Sampling(epsilon=0.2), Sampling(epsilon=1.0)),
        mixture_kl=False,
    ),
    Case(
        "deterministic",
        lambda: DeterministicPolicy((16,), noise=0.5),
        task(OBSERVED, BOUNDED),
        observations,
        (Sampling(), Sampling(epsilon=0.2), Sampling(epsilon=1.0)),
        nudge=0.03,
    ),
    Case(
        "chain-noise",
        lambda: ChainPolicy(3, low=0.5, high=1.0, hidden=(16,)),
        task(OBSERVED, BOUNDED),
        observations,
        crowd=20_000,
    ),
    Case(
        "chain-sde",
        lambda: ChainPolicy(3, law="sde", hidden=(16,)),
        task(OBSERVED, BOUNDED),
        observations,
        nudge=0.03,
        crowd=20_000,
    ),
    Case(
        "chain-single",
        lambda: ChainPolicy(3, law="sde", level=1.0, single=True, hidden=(16,)),
        task(OBSERVED, POINT),
        observations,
        nudge=0.03,
        crowd=20_000,
    ),
    Case(
        "chain-consistency",
        lambda: ChainPolicy(3, law="consistency", final_std=0.3, hidden=(16,)),
        task(OBSERVED, BOUNDED),
        observations,
        nudge=0.02,
        crowd=20_000,
    ),
    Case(
        "guided",
        lambda: Composed(
            Guided(after=1),
            base=ChainPolicy(3, law="sde", hidden=(16,)),
            policy=ChainPolicy(3, law="sde", hidden=(16,)),
        ),
        task(OBSERVED, BOUNDED),
        observations,
        nudge=0.02,
        crowd=20_000,
    ),
    Case(
        "q_discrete",
        lambda: DiscreteQ((16,)),
        task(OBSERVED, FOUR),
        observations,
        (Sampling(epsilon=0.3), Sampling(epsilon=1.0)),
    ),
    Case(
        "q_discrete-masked",
        lambda: DiscreteQ((16,)),
        task(MASKED, LATE),
        masked,
        (Sampling(epsilon=0.3), Sampling(epsilon=1.0)),
    ),
    Case(
        "q_discrete-binned",
        lambda: DiscreteQ((16,), bins=Bins(-1.0, 1.0, 5)),
        task(OBSERVED, FOUR),
        observations,
        (Sampling(epsilon=0.3), Sampling(epsilon=1.0)),
        crowd=5_000,  # means of bins are rounded, and among more rows two actions may be worth the same
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
    Case(
        "causal-lora",
        lambda: Causal(architecture="gpt2", hidden=16, layers=2, heads=2, intermediate=24, lora=Lora(rank=2)),
        WORDS,
        texts,
        (Sampling(max_new=4), Sampling(max_new=4, top_p=0.8, temperature=0.7)),
        shake=0.1,  # a product of two moved matrices moves by more than one
        nudge=0.01,
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
    Case(
        "product-of-texts",
        lambda: Composed(
            Product({"large": 1.0, "tuned": 0.7, "small": -0.7}, within="small", top_p=0.95),
            large=Causal(hidden=16, layers=2, heads=2, intermediate=24),
            tuned=Causal(architecture="gpt2", hidden=12, layers=1, heads=2),
            small=Causal(architecture="gpt2", hidden=12, layers=1, heads=2),
        ),
        WORDS,
        texts,
        (Sampling(max_new=4), Sampling(max_new=3, temperature=0.7, top_k=3, stop=("ab",))),
        shake=0.1,
        nudge=0.003,  # what the support leaves out moves with the weights, and a ratio there is 0
        rows=2_000,
    ),
    Case(
        "product",
        lambda: Composed(Product({"a": 1.5, "b": -0.5}), a=CategoricalPolicy((16,)), b=CategoricalPolicy((16,))),
        task(MASKED, LATE),
        masked,
        SOFT,
        crowd=20_000,
    ),
    Case(
        "residual",
        lambda: Composed(Residual("base", (16,), scale=0.5, noise=0.5, learned=True), base=DeterministicPolicy((16,))),
        task(OBSERVED, BOUNDED),
        observations,
        (Sampling(), Sampling(epsilon=0.2)),
        nudge=0.03,
        crowd=20_000,
    ),
    Case(
        "steered",
        lambda: Composed(Steered(hidden=(16,)), base=ChainPolicy(3, hidden=(16,))),
        task(OBSERVED, BOUNDED),
        observations,
        (Sampling(), Sampling(epsilon=0.2), Sampling(epsilon=1.0)),
        shake=0.1,
        nudge=0.03,  # where a noise is nearly certain, ratios have too heavy a tail
        crowd=20_000,
        mixture_kl=False,
    ),
    Case(
        "filtered",
        lambda: Composed(Filtered(rate=0.1, steps=2), base=GaussianPolicy((16,)), score=ChainPolicy(3, hidden=(16,))),
        task(OBSERVED, BOUNDED),
        observations,
        crowd=20_000,
    ),
    Case(
        "filtered-chain",
        lambda: Composed(
            Filtered(rate=0.1),
            base=ChainPolicy(3, low=0.5, high=1.0, hidden=(16,)),
            score=ChainPolicy(3, law="ddpm", hidden=(16,)),
        ),
        task(OBSERVED, BOUNDED),
        observations,
        crowd=20_000,
    ),
    Case(
        "gated-choices",
        lambda: Composed(Gated(("a", "b"), (16,)), a=CategoricalPolicy((16,)), b=CategoricalPolicy((16,))),
        task(OBSERVED, LATE),
        observations,
        (Sampling(), Sampling(temperature=0.7, epsilon=0.2)),
        crowd=20_000,
    ),
]
