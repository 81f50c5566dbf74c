"""Held-out episodes of a controller on disk: those that evaluation played, and pictures say where it stands."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from shuhari.desk.video import FRAMES, draw_numbers, flatten, save_video, write_gif
from shuhari.loop.run import train
from shuhari.loop.watching import watch
from shuhari.store import Run, StoreError
from small_runs import recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CartPole in lanes, a gridworld in episodes, and text, each of a step or two."""
    home = tmp_path_factory.mktemp("watched")
    short = {"max_steps": 12}
    list(train(recipe("ppo", home, steps=2, evaluate__n=3, evaluate__settings=short), home / "ppo"))
    list(train(recipe("gridworld", home, steps=1), home / "gridworld"))
    return home


def test_they_are_the_episodes_of_evaluation(folder: Path) -> None:
    seen = watch(folder / "ppo", n=5)
    assert [e.problem.id for e in seen] == ["test/0", "test/1", "test/2", "test/3", "test/4"]
    after = Run(folder / "ppo").summary["after"]
    assert fmean(e.total["task"] for e in seen[:3]) == after["greedy"]
    assert fmean(len(e.actions) for e in seen[:3]) == after["length"]
    assert all(len(e.observations) == len(e.actions) + 1 == len(e.rewards) + 1 for e in seen)
    (second,) = watch(folder / "ppo", first=1)
    assert second.actions == seen[1].actions and second.step == 2


def test_a_gridworld_draws_where_the_walker_is(folder: Path) -> None:
    """Cells of 24 pixels; blue at the middle of the walker's, and nowhere else."""
    (seen,) = watch(folder / "gridworld", film=True)
    assert len(seen.frames) == len(seen.observations)
    for frame, state in zip(seen.frames, seen.observations, strict=True):
        assert frame.shape == (48, 72, 3) and frame.dtype == np.uint8
        blue = [i for i in range(6) if tuple(frame[12 + 24 * (i // 3), 12 + 24 * (i % 3)]) == (60, 100, 190)]
        assert blue == [state]


def test_mistakes(folder: Path) -> None:
    with pytest.raises(StoreError, match="no checkpoint of step 9"):
        watch(folder / "ppo", 9)
    with pytest.raises(ValueError, match=r"no held-out episode 100: expected 0\.\.99"):
        watch(folder / "ppo", first=100)
    with pytest.raises(ValueError, match=r"ends in \.gif"):
        save_video(folder / "ppo", folder / "episode.mp4")


def test_a_run_of_text_has_nothing_to_watch(tmp_path: Path) -> None:
    made = recipe("text", tmp_path).with_settings({"stage.warm-up.steps": 1, "steps": 1})
    list(train(made, tmp_path / "text"))
    with pytest.raises(TypeError, match=r"writes text.*show --rollouts"):
        watch(tmp_path / "text")


def test_an_animation_of_pictures_or_of_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from shuhari.tasks.gym import Episode

    assert save_video(folder / "gridworld", folder / "new" / "walk.gif") == ""
    with Image.open(folder / "new" / "walk.gif") as found:
        assert (found.format, found.size) == ("GIF", (72, 48))

    def lost(self: Episode) -> None:
        raise RuntimeError("no screen here")

    monkeypatch.setattr(Episode, "draw", lost)
    assert "no screen here" in save_video(folder / "ppo", folder / "numbers.gif", episode=1)
    with Image.open(folder / "numbers.gif") as found:
        assert found.format == "GIF" and found.n_frames > 2


def test_numbers_are_uncovered_from_left_to_right(folder: Path) -> None:
    (seen,) = watch(folder / "ppo")
    frames = draw_numbers(seen)
    dark = [int((frame < 250).any(2).sum()) for frame in frames]
    assert len(frames) == len(seen.observations) and dark == sorted(dark) and dark[0] < dark[-1]


def test_a_long_animation_is_thinned(tmp_path: Path) -> None:
    """Each moment of its own: every third of 1,001, and the last."""
    from PIL import Image

    frames = [np.full((8, 1001, 3), 255, np.uint8) for _ in range(1001)]
    for i, frame in enumerate(frames):
        frame[:, i] = 0
    write_gif(frames, tmp_path / "long.gif")
    with Image.open(tmp_path / "long.gif") as found:
        assert found.n_frames == 335 <= FRAMES


def test_the_numbers_of_an_observation() -> None:
    assert flatten({"b": np.ones((2, 2)), "a": 3}).tolist() == [1, 1, 1, 1, 3]
