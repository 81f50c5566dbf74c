"""kill -9 at any moment, the same command again: the run ends as one that was never killed, bit for bit."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import dump
from shuhari.store import Run
from shuhari.testing.compare import contents, differences
from small_runs import recipe

SEED = 0
RUNS: dict[str, dict[str, Any]] = {  # with settings that make them long enough to be killed again and again
    "text": {"stage.warm-up.steps": 16, "steps": 16, "evaluate.every": 4, "evaluate.n": 16},
    "dqn": {  # a ring of several blocks that goes round
        "steps": 60,
        "rollout.lanes": 8,
        "buffer.capacity": 9000,
        "buffer.collect": 200,
        "buffer.warmup": 300,
        "store.every": 2,
    },
    "gridworld": {"steps": 60, "buffer.size": 4},
    "asynchronous": {  # groups in flight, by virtual time
        "steps": 60,
        "buffer.size": 4,
        "engine.staleness": 2,
        "engine.virtual": {"decode": 0.01, "train": 0.5},
    },
    "study": {  # a run of runs
        "steps": 60,
        "store.every": 1,
        "study": {"use": "mbtl", "contexts": {"task.seed": [0, 1, 2, 3]}, "trainings": 3, "restarts": 1},
    },
}
TIMES = int(os.environ.get("SHUHARI_KILLS", "1"))  # for many more kills, of runs that are as much longer
KILLS = {name: n * TIMES for name, n in {"text": 3, "dqn": 2, "gridworld": 2, "asynchronous": 2, "study": 2}.items()}
OF = {"asynchronous": "gridworld", "study": "bandit"}  # run -> the recipe of `small_runs` that it is made from
HERE = Path(__file__).parent


class Driver:
    """A `kill_driver`. `seed` is that of Python's hashes: sets are walked in another order in each driver."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.log = folder / f"driver-{seed}.log"
        source = str(HERE.parent / "src")
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
        command = [sys.executable, str(HERE / "kill_driver.py"), str(self.log)]
        self.child = 0
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, file: Path, run: Path) -> int:
        """Fork the command that trains a recipe; the number of its process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(["train", str(file), "--run", str(run)]).encode() + b"\n")
        self.process.stdin.flush()
        self.child = int(self.line())
        return self.child

    def line(self) -> str:
        """The next answer; the first one waits for the imports."""
        out, text = self.process.stdout, b""
        assert out is not None
        while not text.endswith(b"\n") or text == b"ready\n":
            text = b"" if text == b"ready\n" else text
            byte = os.read(out.fileno(), 1)
            assert byte, f"the driver ended: {self.log.read_text() if self.log.exists() else ''}"
            text += byte
        return text.decode()

    def ended(self, within: float = 0.0) -> bool:
        """Whether the process has ended, waiting for it so long."""
        return bool(select.select([self.process.stdout], [], [], within)[0])

    def close(self) -> None:
        if self.child:  # runs on only where the test has failed; else it is a zombie, and feels nothing
            with suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[list[Driver]]:
    both = [Driver(tmp_path, seed) for seed in (1, 2)]
    yield both
    for driver in both:
        driver.close()


def whole(driver: Driver, file: Path, run: Path) -> None:
    """Train to the end, undisturbed."""
    driver.start(file, run)
    assert driver.line() == "0\n", driver.log.read_text()[-3000:]


def killed(driver: Driver, file: Path, run: Path, steps: int, kills: int) -> list[str]:
    """Train, kill, train, kill, ... and then to the end. What was hit, one line a kill."""
    rng = random.Random(f"{SEED} {file.stem}")
    hits = []
    for k in range(kills):
        after = 0 if k == 0 else round(steps * (k - rng.random()) / kills)  # kills are spread over the run
        moment = ("anywhere", "writing", "written")[(k + list(RUNS).index(file.stem)) % 3]
        pid = driver.start(file, run)
        seen = wait(driver, run, after, moment, rng)
        time.sleep(rng.random() * {"anywhere": 0.1, "writing": 0.004, "written": 0.002}[moment])
        os.kill(pid, signal.SIGKILL)
        if int(driver.line()) == -signal.SIGKILL:
            left = sorted(str(p.relative_to(run)) for p in run.glob("**/checkpoints/*"))
            hits.append(f"{file.stem}: {moment} after step {after} ({seen}); there were {left}")
    whole(driver, file, run)
    return hits


def wait(driver: Driver, run: Path, after: int, moment: str, rng: random.Random) -> str:
    """Until the checkpoint of a step from `after` on (of a study: of all its runs' together) is being written, or is
    written; the name of what was seen. With `after` 0 also before there is any."""
    folders = [run / "checkpoints"]
    while not driver.ended(0.0005):
        done = 0  # steps of a study's earlier runs
        for folder in [*folders, *sorted(run.glob("children/*/checkpoints"), key=os.path.getctime)]:
            steps = [0]
            for name in os.listdir(folder) if folder.is_dir() else []:
                kind, _, step = name.rpartition("-")
                number = int(step) if step.isdigit() else 0
                wanted = kind == (".tmp-step" if moment == "writing" else "step") and done + number >= after
                if wanted or after == 0:
                    return name
                steps.append(number)
            done += max(steps)
        if after == 0 and rng.random() < 0.01:
            return "nothing"
    return "the end"


@pytest.mark.timeout(600 * TIMES)
def test_kill_at_any_moment_and_go_on(drivers: list[Driver], tmp_path: Path) -> None:
    longer = {name: {**s, "steps": s["steps"] * max(1, TIMES // 2)} for name, s in RUNS.items()}
    made = {name: recipe(OF.get(name, name), tmp_path, **settings) for name, settings in longer.items()}
    files = {name: tmp_path / f"{name}.toml" for name in RUNS}
    for name, file in files.items():
        file.write_text(dump(made[name]))
    plain, broken = tmp_path / "whole", tmp_path / "killed"

    def chain(driver: Driver, *names: str) -> list[str]:
        steps = {n: longer[n]["steps"] * longer[n].get("study", {}).get("trainings", 1) for n in names}
        return [hit for n in names for hit in killed(driver, files[n], broken / n, steps[n], KILLS[n])]

    def references(driver: Driver, *names: str) -> None:
        for n in names:
            whole(driver, files[n], plain / n)

    first, second = drivers
    others = [name for name in RUNS if name != "text"]
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(lambda: (chain(first, "text"), references(first, *others))[0])
        b = pool.submit(lambda: (references(second, "text"), chain(second, *others))[1])
        hits = a.result() + b.result()
    told = "\n".join(hits)
    print(told)
    for name in RUNS:
        assert Run(broken / name).status == "complete", f"{name}\n{told}"
        for path in [name, *(str(p.relative_to(plain)) for p in plain.glob(f"{name}/children/*"))]:
            found = differences(contents(plain / path), contents(broken / path))
            assert not found, "\n".join([path, *found[:20], told])
        assert files_of(plain / name) == files_of(broken / name), told  # nothing is left lying about
    assert len(hits) == sum(KILLS.values()) == 11 * TIMES, told


def files_of(run: Path) -> list[str]:
    return sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())
