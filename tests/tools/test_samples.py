"""The picture of what a policy makes: its numbers are those of the policy; the PNG itself is only checked to be one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.data import Problem, Status
from shuhari.desk import samples
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.run import train
from shuhari.loop.watching import Watched, watch
from shuhari.tasks.gym import Gym
from shuhari.testing import shrink
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
        x, y, hole, _ = np.stack(episode.observations).T
        np.testing.assert_allclose(path, np.stack([x - hole, y], 1), rtol=1e-6)
    panels = [ax for ax in figure.axes if ax.collections]
    assert [ax.get_title() for ax in panels] == ["before step 1", "before step 2", "decision"]
    for k, ax in enumerate(panels):
        np.testing.assert_allclose(ax.collections[0].get_offsets(), chain[:, k])
    assert [figure.axes[0].get_xlabel(), panels[0].get_ylabel()] == ["x from the hole", "action 2"]


def test_one_decision_has_no_path_and_its_goal_is_marked_in_a_few_panels(tmp_path: Path) -> None:
    list(train(shrink(load("baselines/ddpo_clusters"), 1), tmp_path / "run"))
    seen = watch(tmp_path / "run")
    figure = samples.draw_episodes(seen, np.arange(66.0).reshape(3, 11, 2))
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [*(f"before step {k}" for k in (1, 3, 5, 7, 9)), "decision"]
    goal = seen[0].observations[0][4:6] + seen[0].observations[0][2:4]  # the middle, and the goal's angle
    for ax in figure.axes:
        np.testing.assert_allclose(ax.lines[0].get_xydata(), [goal])


def test_a_single_action_is_counted_and_a_long_episode_over_time_begins(tmp_path: Path) -> None:
    tall = Watched(Problem("t", "test/0", None), 0, Status.FINISHED, list(range(1001)), [0] * 1000, [], {})
    figure = samples.draw_episodes([tall] * 3, np.array([[[0.0], [1.0]]] * 5))
    paths, before, after = figure.axes
    (line,) = (line.get_xydata() for line in paths.lines if len(line.get_xydata()) > 1)
    assert line.tolist() == [[i, i] for i in range(samples.LONG + 1)] and paths.get_xlabel() == "step"
    assert [sum(bar.get_height() for bar in ax.patches) for ax in (before, after)] == [5, 5]
    assert before.patches[0].get_height() == after.patches[-1].get_height() == 5


def test_a_peg_is_seen_from_its_hole(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    list(train(shrink(load("baselines/flow_bc_insert"), 1), tmp_path / "run"))
    assert is_png(samples.save_samples(tmp_path / "run"))
    assert not [w for w in recwarn if "render_mode" in str(w.message)]
    ax, _ = walk(tmp_path / "run")
    _, left, right, bottom = boxes(ax)
    assert left[0] + left[2] == pytest.approx(bottom[0]) and right[0] == pytest.approx(bottom[0] + bottom[2])
    assert bottom[2] == pytest.approx(0.08) and bottom[1] == left[1] == right[1] == -0.15


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
