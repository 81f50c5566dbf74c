"""What the board plays and draws of a checkpoint: the same that the terminal does, and nothing is written for it."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_runs import WALK
from PIL import Image

from shuhari.desk.api import train
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views import media
from shuhari.desk.episodes import play
from shuhari.desk.serving.refusals import Refused
from small_runs import write_sums


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    home = tmp_path_factory.mktemp("media")
    for name, text in (("walk", WALK), ("sums", 'summary = "sums"\n' + write_sums(steps=1, size=2))):
        (home / f"{name}.toml").write_text(text)
        train(home / f"{name}.toml", home / "runs" / name)
    return Catalogue(home / "runs")


def list_files(run: Path) -> Any:
    return {
        p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and "-shm" not in p.name and "-wal" not in p.name
    }


def test_a_walk_is_played_drawn_and_told_as_a_table(runs: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list_files(runs.find("walk"))
    assert [c["step"] for c in media.list_checkpoints(runs, "walk")["checkpoints"]] == [1, 2]
    played = media.play_episode(runs, "walk")
    (expected,) = play(runs.find("walk"), None, 1)
    assert played["problem"] == "test/0" and played["rewards"] == expected["episodes"][0]["reward"]
    assert played["track"]["curves"]["action"] == [*expected["episodes"][0]["actions"], None]
    policy = media.describe_policy(runs, "walk")
    assert policy["names"] == ["up", "right", "down", "left"] and policy["cells"][0] == "S..#"
    assert len(policy["chances"]) == 16 and sum(policy["chances"][0]) == pytest.approx(1, abs=1e-3)
    assert media.play_episode(runs, "walk") is played  # kept
    monkeypatch.setattr(media, "KEPT", 1)
    assert media.draw_samples(runs, "walk").data[:4] == b"\x89PNG"
    assert len(media._kept) == 1  # what was made before had to go
    assert list_files(runs.find("walk")) == before


def test_an_episode_comes_with_its_pictures(runs: Catalogue) -> None:
    found = media.play_episode(runs, "walk")
    at, images = found["frames"]["at"], found["frames"]["images"]
    assert at == found["track"]["at"] and len(images) == len(at)  # each moment of a short one
    assert Image.open(io.BytesIO(base64.b64decode(images[0]))).format == "JPEG"


def test_pictures_of_a_long_episode_are_thinned_and_small() -> None:
    frames = [np.full((1300, 700, 3), i % 256, np.uint8) for i in range(3 * media.FRAMES)]
    packed = media._pack(frames)
    assert len(packed["at"]) == media.FRAMES and (packed["at"][0], packed["at"][-1]) == (0, len(frames) - 1)
    first, last = (Image.open(io.BytesIO(base64.b64decode(packed["images"][i]))) for i in (0, -1))
    assert max(first.size) <= media.SIDE and first.size == last.size
    assert abs(np.asarray(last).mean() - (len(frames) - 1) % 256) < 2
    assert media._pack(()) == {"at": [], "images": []}


def test_only_what_a_policy_can_do_is_offered(runs: Catalogue) -> None:
    from shuhari.config.recipe import dump, load
    from shuhari.store import Store

    assert media.list_drawable(runs, "walk")["kinds"] == ["played", "samples", "policy"]
    found = media.list_drawable(runs, "sums")
    assert found["kinds"] == [] and "token by token" in found["why"]
    wanted = {"beds/masked/many": ["samples"], "baselines/ppo_cartpole": ["played", "samples"]}
    for name, kinds in wanted.items():
        with Store.open(runs.root / name) as store:  # no weights are needed to say so
            store.write_text("recipe.toml", dump(load(name)))
        assert media.list_drawable(runs, name)["kinds"] == kinds, name


def test_one_is_made_one_waits_and_others_are_told(runs: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_kept", OrderedDict())
    began, end = threading.Event(), threading.Event()

    def make() -> str:
        began.set()
        assert end.wait(10)
        return "made"

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(media._make, runs.find("walk"), (i,), make, len) for i in range(2)]
        assert began.wait(10)
        while media._room._value:
            time.sleep(0.001)
        with pytest.raises(Refused, match="one at a time") as refused:
            media.play_episode(runs, "walk")
        assert refused.value.status == 409 and refused.value.code == "busy"
        end.set()
        assert [a.result() for a in asked] == ["made", "made"]
    assert media._room._value == 2


def test_what_cannot_be_played_is_said(runs: Catalogue) -> None:
    for view in (media.play_episode, media.describe_policy, media.draw_samples):
        with pytest.raises(Refused, match=r"writes t(ext|oken by token)") as refused:
            view(runs, "sums")  # type: ignore[operator]
        assert refused.value.status == 422
    with pytest.raises(Refused, match="no held-out episode 999"):
        media.play_episode(runs, "walk", episode=999)
