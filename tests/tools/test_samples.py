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
from shuhari.tasks.gym import Gym
from shuhari.testing import shrink
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


def boxes(ax: Any) -> list[tuple[float, float, float, float]]:
    return [(*box.get_xy(), box.get_width(), box.get_height()) for box in ax.patches]


def walk(run: Path, seen: Any = None) -> tuple[Any, Any]:
    """The panel of paths, and its first path [T + 1, 2]."""
    ax = samples.draw_episodes(seen or watch(run, n=samples.SHOWN)).axes[0]
    return ax, next(line.get_xydata() for line in ax.lines if len(line.get_xydata()) > 1)


def test_a_path_among_walls(tmp_path: Path) -> None:
    """The middle row is wall but for its last cell; the goal is the last cell of the row above."""
    maze = "..G\n##.\nS.."
    small = shrink(load("baselines/td3_bc_point"), 1, task__kwargs__maze=maze, task__kwargs__limit=12)
    list(train(small, tmp_path / "point"))
    run = tmp_path / "point"
    assert is_png(samples.save_samples(run))
    seen = watch(run, n=2)
    ax, path = walk(run, seen)
    third = 2 / 3
    whole, *walls, goal = boxes(ax)
    np.testing.assert_allclose(whole, (-1, -1, 2, 2))
    np.testing.assert_allclose(walls, [(-1, -third / 2, third, third), (-third / 2, -third / 2, third, third)])
    np.testing.assert_allclose(goal, (third / 2, third / 2, third, third))
    np.testing.assert_allclose(path, np.stack(seen[0].observations)[:, :2])
    assert not any(x < a < x + w and y < b < y + h for a, b in path for x, y, w, h in walls)


def test_a_table_s_path_through_a_maze_of_cells(tmp_path: Path) -> None:
    run = made("stepwise", tmp_path)
    assert is_png(samples.save_samples(run))
    seen = watch(run, n=2)
    ax, path = walk(run, seen)
    whole, *walls, goal = boxes(ax)
    assert whole == (0, 0, 3, 3) and all(w == h == 1 for *_, w, h in (*walls, goal))
    assert (np.abs(np.diff(path, axis=0)).sum(1) <= 1).all() and (path % 1 == 0.5).all()  # from cell to cell
    assert abs(path[0] - 0.5 - goal[:2]).sum() == 1  # distance = 1
    assert not any((x, y) == (a - 0.5, b - 0.5) for a, b in path for x, y, *_ in walls)


def test_what_is_seen_in_another_way_has_no_scene() -> None:
    assert Gym("world/point").scene.goals and Gym("world/point", keep=(2, 3)).scene is None
    assert Gym("world/point", stack=2).scene is None and Gym("CartPole-v1").scene is None
    ((x, _, wide, _),) = Gym("world/merge").scene.goals
    assert (x, wide) == (1.0, 0.02)


@pytest.mark.parametrize("base", ["sac_merge", "ppo_cmdp", "gridworld", "mbpo_chaos"])
def test_every_kind_of_controller_has_a_picture(tmp_path: Path, base: str) -> None:
    """On a road, over states without a place, on a grid that draws itself, and among distractors."""
    list(train(shrink(load(f"baselines/{base}"), 1), tmp_path / "run"))
    assert is_png(samples.save_samples(tmp_path / "run"))
