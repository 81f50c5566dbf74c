"""Published scores on recorded data (D4RL, OGBench), which are not here: a user has their files in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe
from shuhari.data import Array
from shuhari.lab.reproduce.published import Published, Target

BODIES = {"halfcheetah": "HalfCheetah", "hopper": "Hopper", "walker2d": "Walker2d"}  # of D4RL -> of Gymnasium
CORL = "https://github.com/tinkoff-ai/CORL"
D4RL = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/"
SPAN = 1000.0  # of the returns, once rewards are scaled


def list_recorded(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Target]:
    """Yield a target for each method and data set of `recorded.toml`."""
    for method, table in tables["d4rl"].items():
        for of, (mean, deviation) in table["scores"].items():
            body, _, kind = of.partition("-")
            env, file = BODIES[body], f"{body}_{kind.replace('-', '_')}-v2.hdf5"
            there = Published("CORL", mean, CORL, f"{env}-v2", 4, deviation, ddof=0)
            own = {"task.name": f"gym/{env}-v4", "buffer.data.path": f"data/{file}"}
            yield Target(
                f"{method}-{of}", table["recipe"], "greedy.normalised",
                f"the normalised score of 10 episodes after training on {of}-v2", 4, table["minutes"], (there,),
                {**own, **table.get("settings", {}).get(of, {})}, "control", of, file, D4RL + file,
                of in table.get("scaled", ()),
            )  # fmt: skip
    for method, table in tables["ogbench"].items():
        for of in table["tasks"]:
            env = of.rpartition("-")[0]
            file = f"{of}-singletask-v0.npz"
            own = {"task.name": f"gym/ogbench:{env}-singletask-v0", "task.tells.success": "final",
                   "buffer.data.path": f"data/{file}"}  # fmt: skip
            yield Target(
                f"{method}-{of}", table["recipe"], "greedy.success",
                f"the share of 50 episodes with success after training on {of}-singletask-v0", 4, table["minutes"], (),
                {**own, **table.get("settings", {}).get(of, {})}, "ogbench", of, file,
                "the package ogbench, as the recipe says",
            )  # fmt: skip


def read_rewards(path: Path) -> tuple[Array, Array]:
    """The rewards [N] of a file of D4RL or OGBench, and which rows [N] end an episode. Raises RecipeError for a file
    that cannot be learned from: no rewards, or one that is no number."""
    from shuhari.buffers.data_files import read_arrays
    from shuhari.buffers.layouts import FLAGS

    names = ("observations", "actions", "rewards", "terminals")
    try:
        arrays = read_arrays(path, names, (*names, "timeouts"), FLAGS)
    except ValueError as error:
        raise RecipeError("", str(error)) from None
    rewards = arrays["rewards"]
    if rewards.ndim != 1:
        raise RecipeError("", f"{path}: rewards is an array {list(rewards.shape)}: expected a number for each row")
    if len(bad := np.flatnonzero(~np.isfinite(rewards))):
        raise RecipeError("", f"{path}: the reward of row {bad[0]} is {rewards[bad[0]]} (so in {len(bad)} of "
                              f"{len(rewards)} rows): expected numbers")  # fmt: skip
    over = arrays["terminals"].astype(bool)
    return rewards, over | arrays["timeouts"].astype(bool) if "timeouts" in arrays else over


def span_returns(path: Path) -> float:
    """The largest return less the smallest of the whole episodes of a file in the layout of D4RL. Raises RecipeError if
    they are all alike, or fewer than two."""
    rewards, over = read_rewards(path)
    sums = np.cumsum(rewards, dtype=np.float64)[over]
    span = float(np.ptp(np.diff(sums, prepend=0.0))) if len(sums) else 0.0
    if span <= 0:
        raise RecipeError("", f"{path}: expected returns that differ, to scale rewards by; it has {len(sums)} whole "
                              "episodes (terminals, timeouts), and they differ in nothing")  # fmt: skip
    return span


def digest_data(path: Path) -> str:
    """A digest of a file, which a result keeps of what was learned from."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=6)).hexdigest()


def check_data(target: Target, kept: Iterable[Path]) -> None:
    """Look at a target's data before anything is trained. `kept`: files with what runs have measured. Raises
    RecipeError if the data are not there or cannot be learned from, or if one of these runs learned from others."""
    if (path := find_data(target)) is None:
        return
    read_rewards(path)
    digests = {file: json.loads(file.read_text()).get("data") for file in kept}
    here = digest_data(path) if digests else None
    for file, there in digests.items():
        if there != here:
            raise RecipeError("", f"{file.parent} was measured on another {target.data} ({there}, and {path} is "
                                  f"{here}): remove it, or name another folder by --runs")  # fmt: skip


def find_data(target: Target) -> Path | None:
    """The file of a target in its folder; None if it needs none. Raises RecipeError if it is not there."""
    if not target.data:
        return None
    if not (path := Path(target.folder).expanduser() / target.data).is_file():
        raise RecipeError("", f"{target.name}: no {target.data} in the folder {target.folder} (--data names another); "
                              f"it is had from {target.source}")  # fmt: skip
    return path


def load_here(target: Target, seed: int) -> Recipe:
    """Return the recipe of one run with the data that are here. Raises RecipeError if they are not."""
    if (path := find_data(target)) is None:
        return target.load(seed)
    here: dict[str, Any] = {"buffer.data.path": str(path)}
    if target.scaled:
        here["reward.weights.task"] = SPAN / span_returns(path)
    return target.load(seed).with_settings(here)
