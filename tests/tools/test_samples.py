"""The picture of what a policy makes: its numbers are those of the policy; the PNG itself is only checked to be one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.run import train
from shuhari.loop.watching import watch
from shuhari.noise import CounterNoise, keys
from shuhari.tools import samples
from small_runs import recipe

RUNS = Path(__file__).parents[1] / "runs"


def made(name: str, home: Path, **settings: Any) -> Path:
    list(train(load(str(RUNS / f"{name}.toml")).with_settings(settings), home / name))
    return home / name


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_paths_and_chains_of_a_policy_that_denoises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made("denoised", tmp_path)
    kept, draw = [], samples.draw_episodes
    monkeypatch.setattr(samples, "draw_episodes", lambda *given: kept.append(given) or draw(*given))
    assert samples.save_samples(run) == run / "samples.png" and is_png(run / "samples.png")
    ((seen, chain),) = kept
    for shown, episode in zip(seen, watch(run, n=samples.SHOWN), strict=True):
        np.testing.assert_array_equal(shown.observations, episode.observations)
    noise = CounterNoise(keys(0, "samples", n=samples.CHAINS)).normal(0, 3, 2)
    np.testing.assert_allclose(chain[:, 0], noise[:, 0])
    assert chain.shape == (samples.CHAINS, 3, 2)  # before each of two steps, and the end; two dimensions

    figure = draw(seen, chain)
    paths = [line.get_xydata() for line in figure.axes[0].lines if len(line.get_xydata()) > 1]
    for path, episode in zip(paths, seen, strict=True):
        np.testing.assert_allclose(path, np.stack(episode.observations)[:, :2])
    panels = [ax for ax in figure.axes if ax.collections]
    assert [ax.get_title() for ax in panels] == ["before step 1", "before step 2", "decision"]
    for k, ax in enumerate(panels):
        np.testing.assert_allclose(ax.collections[0].get_offsets(), chain[:, k])


@pytest.mark.parametrize("order", ["left", "random"])
def test_masks_are_filled_in_one_a_step_by_the_order_of_the_rollout(tmp_path: Path, order: str) -> None:
    run = made("masked", tmp_path, steps=1, **{"models.any.order": order})
    assert is_png(samples.save_samples(run, tmp_path / "new" / "filled.png"))
    spread = load(run).with_settings({"distributed.workers": 1000, "distributed.learners": 1000})
    with open_checkpoint(run, recipe=spread) as opened:  # whoever looks at a run needs none of them
        found = samples._fill_masks(run, opened)
    assert len(found) == samples.SHOWN
    places = []
    for _, states in found:
        assert states[0] == [""] * 4 and "" not in states[-1]
        for before, after in pairwise(states):
            # what is said stays, but behind an end
            assert all(new in (old, "·") for old, new in zip(before, after, strict=True) if old)
            filled = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new and not old]
            places.append(filled[0])
            assert len(filled) == 1 or set(after[filled[1] :]) == {"·"}  # more at once behind an end alone
            assert order != "left" or filled[0] == 4 - before.count("")
    assert order == "left" or places != sorted(places)


def test_text_that_is_written_token_by_token_is_shown_elsewhere(tmp_path: Path) -> None:
    list(train(recipe("text", tmp_path).with_settings({"stage.warm-up.steps": 1, "steps": 1}), tmp_path / "text"))
    with pytest.raises(TypeError, match="show --rollouts"):
        samples.save_samples(tmp_path / "text")
