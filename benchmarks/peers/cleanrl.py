"""CleanRL's own script on this machine, beside its published numbers and ours.

    git clone https://github.com/vwxyzjn/cleanrl ../cleanrl
    python -m venv benchmarks/.cleanrl
    benchmarks/.cleanrl/bin/pip install torch gymnasium==0.29.1 mujoco==2.3.3 imageio tyro tensorboard
    benchmarks/.cleanrl/bin/python benchmarks/peers/cleanrl.py ../cleanrl/cleanrl/ppo_continuous_action.py Walker2d-v4 3

The file is run as it is, with its defaults, on one thread; its seeds are 1, 2, ... as in its table. The value is the
mean of the last 100 training episodes, which it prints. What a result file has already is not trained again. Writes
`peer` of results/reproduce/ppo-NAME-as-released.json: `by`, `version`, and `runs`.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reproduce import make_missing

NAMES = {"Hopper-v4": "hopper", "Walker2d-v4": "walker2d", "HalfCheetah-v4": "halfcheetah"}
LINE = re.compile(r"^global_step=(\d+), episodic_return=\[?(-?[\d.e+-]+)\]?$", re.MULTILINE)
STEPS, LAST, POINTS = 1_000_000, 100, 100


def train(script: Path, env: str, seed: int) -> dict[str, Any]:
    """One run: `seed`, `value`, `curve` [[steps, mean return of the last 100 episodes], ...], `wall_s`, `cpu_s`."""
    command = [sys.executable, "-W", "ignore", str(script), "--env-id", env, "--seed", str(seed)]
    command += ["--total-timesteps", str(STEPS), "--no-cuda"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with TemporaryDirectory() as folder:  # for what it writes for TensorBoard
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = [(int(step), float(value)) for step, value in LINE.findall(done.stdout)]
    means = [
        [step, sum(value for _, value in found[max(0, i - LAST + 1) : i + 1]) / min(i + 1, LAST)]
        for i, (step, _) in enumerate(found)
    ]
    thin = max(1, len(means) // POINTS)
    curve = [[step, float(f"{mean:.6g}")] for step, mean in means[::-1][::thin][::-1]]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seed": seed, "value": curve[-1][1], "curve": curve, "wall_s": round(time.monotonic() - began, 1),
            "cpu_s": round(cpu, 1)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("env", choices=NAMES)
    parser.add_argument("seeds", type=int)
    given = parser.parse_args()
    used = f"its own file, MuJoCo {version('mujoco')}"
    make_missing(f"ppo-{NAMES[given.env]}-as-released", "CleanRL", used, range(1, given.seeds + 1),
                 partial(train, given.script.resolve(), given.env))  # fmt: skip


if __name__ == "__main__":
    main()
