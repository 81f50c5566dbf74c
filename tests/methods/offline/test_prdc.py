"""PRDC's neighbours: the catalogue's pairs by hand, the limit in which they are what was recorded, and its loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.events import Loaded
from shuhari.methods.offline.prdc.nearest_action import Nearest
from shuhari.needs import evaluate
from shuhari.objectives.deterministic_bc import DeterministicBC
from shuhari.testing import loop, open_run


def recorded(state: Any, action: Any) -> Batch:
    state, action = torch.as_tensor(state, dtype=torch.float32), torch.as_tensor(action, dtype=torch.float32)
    return Batch({"context": state, "action": action, "mask": torch.ones(len(state), 1, dtype=torch.bool)})


@pytest.mark.parametrize(("beta", "action"), [(2.0, 1.0), (10.0, -1.0)])
def test_the_pairs_of_the_catalogue(beta: float, action: float) -> None:
    """(s, a) = (0, -1) and (1, 1), asked at s = 0.4 and a = 0.9: squared distances 4.25 and 1.45 at beta = 2, 19.61
    and 36.01 at beta = 10. States are divided by their deviation, here 1/2, so beta stands for half of it."""
    data = recorded([[0.0], [1.0]], [[-1.0], [1.0]])
    nearest = Nearest(beta=beta / 2)
    nearest.observe(Loaded(data))
    at = recorded([[0.4]], [[0.0]]).put({nearest.needs[0].key: torch.tensor([[0.9]])})
    assert nearest(at, testing.context())["nearest"].tolist() == [[action]]
    keys = torch.tensor(nearest._tree.data)  # type: ignore[union-attr]
    here = torch.tensor(nearest._keys(at, torch.tensor([[0.9]])))
    expected = {2.0: [4.25, 1.45], 10.0: [19.61, 36.01]}[beta]
    torch.testing.assert_close((keys - here).square().sum(1), torch.tensor(expected, dtype=torch.float64))


def test_a_brute_search_finds_the_same() -> None:
    g = torch.Generator().manual_seed(0)
    state, action = torch.randn(200, 3, generator=g), 2 * torch.rand(200, 2, generator=g) - 1
    at, does = torch.randn(40, 3, generator=g), 2 * torch.rand(40, 2, generator=g) - 1
    nearest = Nearest(beta=1.5)
    nearest.observe(Loaded(recorded(state, action)))
    batch = recorded(at, does).put({nearest.needs[0].key: does})
    unit = (state.double() - state.double().mean(0)) / state.double().std(0, correction=0)
    seen = (at.double() - state.double().mean(0)) / state.double().std(0, correction=0)
    key = torch.cat([1.5 * unit, action.double()], 1)
    best = torch.cdist(torch.cat([1.5 * seen, does.double()], 1), key).argmin(1)
    torch.testing.assert_close(nearest(batch, testing.context())["nearest"], action[best])


def test_with_a_large_beta_it_is_td3_bc_and_at_a_recorded_pair_it_pulls_nowhere() -> None:
    g = torch.Generator().manual_seed(1)
    data = recorded(torch.randn(50, 3, generator=g), 2 * torch.rand(50, 2, generator=g) - 1)

    def gradient(nearest: Nearest, toward: str, mean: torch.Tensor, alpha: float) -> torch.Tensor:
        mean = mean.clone().requires_grad_()
        policy: Any = lambda batch: SimpleNamespace(mode=lambda: mean)  # noqa: E731
        policy.module = None
        critic = lambda batch: SimpleNamespace(value=lambda: batch["action"].sum(1, keepdim=True)[:, None])  # noqa: E731
        ctx = testing.context(models={"policy": policy, "critic": critic})
        nearest.observe(Loaded(data))
        batch = nearest(data.put({nearest.needs[0].key: mean.detach()}), ctx)
        loss = DeterministicBC(alpha=alpha, toward=toward)
        loss(batch.put(evaluate(batch, loss.needs, ctx.models, ["policy"])), ctx)[0].mean().backward()
        return mean.grad  # type: ignore[return-value]

    does = 2 * torch.rand(50, 2, generator=g) - 1
    wide = gradient(Nearest(beta=1e6), "nearest", does, 2.5)
    torch.testing.assert_close(wide, gradient(Nearest(), "action", does, 2.5))
    assert not torch.allclose(wide, gradient(Nearest(beta=2.0), "nearest", does, 2.5))
    assert gradient(Nearest(beta=2.0), "nearest", data["action"], 0.0).count_nonzero() == 0


def test_the_recipe_pulls_toward_neighbours_of_what_the_policy_does_now() -> None:
    small = {"steps": 2, "evaluate.n": 0, "evaluate.every": 0, "buffer.draws": 4, "buffer.size": 32,
             "buffer.data.episodes": 4}  # fmt: skip

    def distances(**settings: Any) -> list[float]:
        reports = list(loop(open_run(load("offline/prdc").with_settings({**small, **settings}))))
        return [r["policy/distance"] for r in reports if "policy/distance" in r]

    near, same = distances(), distances(**{"transform.nearest_action.beta": 1e6})
    assert len(near) == 2 and all(a < 0.8 * b for a, b in zip(near, same, strict=True))


def test_nothing_recorded_is_told() -> None:
    with pytest.raises(RuntimeError, match="its buffer is 'offline'"):
        Nearest()(recorded([[0.0]], [[0.0]]), testing.context())
