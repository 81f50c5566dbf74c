"""The names in the tables of docs/from-trl.md and docs/from-sb3.md are names that the libraries have."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))
import peers  # of docs, not this folder's


def takes(*functions) -> set[str]:
    return {name for f in functions for name in inspect.signature(f).parameters}


def test_trl():
    from trl import GRPOConfig, GRPOTrainer

    assert set(peers.TRL) <= {f.name for f in fields(GRPOConfig)} | takes(GRPOTrainer.__init__)


def test_stable_baselines3():
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env

    classes = [one.__init__ for one in (PPO, SAC, DQN, EvalCallback)]
    assert set(peers.SB3) <= takes(*classes, PPO.learn, make_vec_env)
