"""What faults do to runs: kills at random moments, random damage of files, edits by SQL. None may go unnoticed.

    python benchmarks/faults.py                                            200 kills, 200 damages, 60 edits
    python benchmarks/faults.py --kills 10 --damages 20 --edits 20 --seed 1    a look

Runs of text, of control (a replay on disk), asynchronous ones and a study, a few seconds each (`tests/test_kill.py`).
Kills: `shuhari train` is started as a user does, and ended by kill -9 at a random moment, again and again; then it runs
to its end, which must be that of a run that was never killed, bit for bit. Damages and edits: of a run that was killed
half-way, one file is changed at random, or one cell, or row, of its database. The command `shuhari doctor`
tells it, or `shuhari train` refuses it, or the run ends as if nothing had been (in forks of one process, which saves
imports). A table is printed; the exit code is 1 if a run ended otherwise, and nobody had said a word.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from common import table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from shuhari.config.recipe import dump  # noqa: E402
from shuhari.desk.cli import main as main_of_shuhari  # noqa: E402
from shuhari.store import Run, inspect_run  # noqa: E402
from shuhari.testing.compare import contents, differences  # noqa: E402
from small_runs import recipe  # noqa: E402
from test_kill import OF, RUNS, Driver, files_of  # noqa: E402

NAMES = ("text", "dqn", "asynchronous", "study")
ROUND = 5  # kills of one run
SHARE = 0.1  # of kills before the run is opened
TRAIN = [str(Path(sys.executable).parent / "shuhari"), "train"]


class Lab:
    """Recipes, a run of each that was never disturbed, and one that was killed half-way."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver, self.count = folder, Driver(folder, 1), 0
        self.files = {name: folder / f"{name}.toml" for name in NAMES}
        self.ends, self.seconds = dict[str, dict[str, Any]](), dict[str, float]()
        for name, file in self.files.items():
            file.write_text(dump(recipe(OF.get(name, name), folder, **RUNS[name])))
            assert self.train(name, folder / "whole" / name) == 0, self.driver.log.read_text()[-3000:]
            self.ends[name] = read(folder / "whole" / name)

    def train(self, name: str, run: Path) -> int:
        self.driver.start(self.files[name], run)
        return int(self.driver.line())

    def stop(self, name: str) -> Path:
        """A run that was killed half-way."""
        run, whole = self.folder / "half" / name, Run(self.folder / "whole" / name).step
        pid = self.driver.start(self.files[name], run)
        while not self.driver.ended(0.002):
            steps = [0, *(int(p.name[5:13]) for p in run.glob("checkpoints/step-*"))]
            if max(steps) >= whole / 2:
                os.kill(pid, signal.SIGKILL)
                break
        self.driver.line()
        return run

    def place(self) -> Path:
        self.count += 1
        return self.folder / "tries" / str(self.count)


def read(run: Path) -> dict[str, Any]:
    """All that a run and the runs below it have written; a run that cannot be read is as different as can be."""
    places = [run, *sorted(run.glob("children/*"))]
    return {"files": files_of(run), **{str(p.relative_to(run)): contents(p) for p in places}}


def compare(end: dict[str, Any], run: Path) -> list[str]:
    """Where a run has not ended as another."""
    try:
        found = read(run)
        own = [f for f in found["files"] if not f.startswith("damaged-")]
        faults = [fault for p in (run, *run.glob("children/*")) for fault in inspect_run(p).faults]
        return [*differences(end, {**found, "files": own}), *faults]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


# ---------------------------------------------------------------- kills


def kill(lab: Lab, kills: int, rng: random.Random) -> tuple[Counter[str], list[str]]:
    """How often which kind of run was hit, and what ended otherwise."""
    hits, bad, turn = Counter[str](), list[str](), 0
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    while hits.total() < kills:
        name, run = NAMES[turn % len(NAMES)], lab.place()
        turn += 1
        command = [*TRAIN, str(lab.files[name]), "--run", str(run)]
        with open(lab.folder / "train.log", "ab") as log:
            for k in range(min(ROUND, kills - hits.total())):
                began = time.monotonic()
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
                if rng.random() >= SHARE:
                    wait_until_open(process, run)
                    lab.seconds.setdefault(name, 1.0)
                    until = rng.random() * 1.5 * lab.seconds[name] / (ROUND - k)
                else:
                    until = rng.random() * 2
                with suppress(subprocess.TimeoutExpired):
                    process.wait(until)
                process.kill()
                if process.wait() == -signal.SIGKILL:
                    hits[name] += 1
                elif k == 0:  # what one takes, with nothing done before
                    lab.seconds[name] = max(0.2, time.monotonic() - began - 2)
            if (code := subprocess.run(command, env=env, stdout=log, stderr=log).returncode) != 0:
                bad.append(f"{name} in {run}: it ended with {code}")
        if found := compare(lab.ends[name], run):
            bad.append(f"{name} in {run}: {found[0]}")
        else:
            shutil.rmtree(run)
        print(f"kills: {hits.total()} of {kills}, {len(bad)} bad", file=sys.stderr, flush=True)
    return hits, bad


def wait_until_open(process: subprocess.Popen[bytes], run: Path) -> None:
    """Until the process says in the run's lock that it writes it, or ends."""
    while process.poll() is None:
        with suppress(OSError):
            if f"process {process.pid} " in (run / "run.lock").read_text():
                return
        time.sleep(0.005)


# ---------------------------------------------------------------- damages of files


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def overwrite(file: Path, rng: random.Random, made: Callable[[int], bytes]) -> None:
    data = bytearray(file.read_bytes())
    n = min(len(data), rng.choice([16, 512, 4096]))
    at = rng.randrange(len(data) - n + 1)
    data[at : at + n] = made(n)
    file.write_bytes(data)


def swap(file: Path, rng: random.Random) -> None:
    others = [p for p in file.parent.iterdir() if p.is_file() and p != file]
    other = rng.choice(others or [file])
    here, there = file.read_bytes(), other.read_bytes()
    file.write_bytes(there)
    other.write_bytes(here)


DAMAGES: dict[str, Callable[[Path, random.Random], Any]] = {
    "flip": flip,
    "truncate": truncate,
    "zero": lambda file, rng: overwrite(file, rng, bytes),
    "garbage": lambda file, rng: overwrite(file, rng, rng.randbytes),
    "append": lambda file, rng: file.write_bytes(file.read_bytes() + rng.randbytes(rng.choice([1, 100, 5000]))),
    "empty": lambda file, rng: file.write_bytes(b""),
    "delete": lambda file, rng: file.unlink(),
    "swap": swap,
}


def damage(run: Path, rng: random.Random) -> tuple[str, str]:
    """(kind, file) of what was done."""
    kind = rng.choice(list(DAMAGES))
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.stat().st_size)
    file = rng.choice(files)
    DAMAGES[kind](file, rng)
    return kind, str(file.relative_to(run))


# ---------------------------------------------------------------- edits by SQL


def edit(run: Path, rng: random.Random) -> tuple[str, str]:
    """(kind, table and column) of one change of a database."""
    place = rng.choice([run, *sorted(p for p in run.glob("children/*") if (p / "run.sqlite").exists())])
    with closing(sqlite3.connect(place / "run.sqlite", isolation_level=None)) as db:
        tables = sorted(name for (name,) in db.execute("select name from sqlite_master where type = 'table'"))
        for _ in range(1000):
            name, kind = rng.choice(tables), rng.choice(["cell", "cell", "delete", "copy", "swap", "empty"])
            columns = [row[1] for row in db.execute(f"pragma table_info({name})")]
            column, rows = rng.choice(columns), db.execute(f"select * from {name}").fetchall()
            if not rows:
                continue
            row, other = rng.choice(rows), rng.choice(rows)
            with suppress(sqlite3.Error):
                done = change(db, name, kind, columns, column, row, other, rng)
                if done and db.execute(f"select * from {name}").fetchall() != rows:
                    return kind, f"{name}.{column}" if kind in ("cell", "swap") else name
    raise AssertionError("nothing could be edited")


def change(
    db: sqlite3.Connection, name: str, kind: str, columns: list[str], column: str, row: Any, other: Any,
    rng: random.Random,
) -> bool:  # fmt: skip
    """Whether a change of a kind was made; sqlite3.Error where it may not be."""
    same = " and ".join(f"{c} is ?" for c in columns)
    at = columns.index(column)
    if kind == "empty":
        return db.execute(f"delete from {name}").rowcount > 0
    if kind == "delete":
        return db.execute(f"delete from {name} where {same}", row).rowcount > 0
    if kind == "copy":  # as another row, whose key is free
        new = [x + rng.randrange(1, 9) if isinstance(x, int) and i < 2 else x for i, x in enumerate(row)]
        new = [f"{x}x" if isinstance(x, str) and i == 0 else x for i, x in enumerate(new)]
        return db.execute(f"insert into {name} values ({', '.join('?' * len(new))})", new).rowcount > 0
    if kind == "swap":
        values = (other[at], row[at])
    else:
        x = row[at]
        number = rng.choice([x + 1, -x, 0, None]) if isinstance(x, int | float) else None
        text = rng.choice([f"{x}1", x[:-1], x.replace("1", "2"), "", "/tmp"]) if isinstance(x, str) else None
        blob = rng.choice([x[:-1], x + b"\0", bytes(len(x))]) if isinstance(x, bytes) else None
        new = number if isinstance(x, int | float) else text if isinstance(x, str) else blob
        values = (new if x is not None else 7,)
    if kind == "swap":
        db.execute("begin")
        try:
            done = db.execute(f"update {name} set {column} = ? where {same}", (values[0], *row)).rowcount
            done += db.execute(f"update {name} set {column} = ? where {same}", (values[1], *other)).rowcount
        except sqlite3.Error:
            db.execute("rollback")
            raise
        db.execute("commit")
        return done > 0
    return db.execute(f"update {name} set {column} = ? where {same}", (values[0], *row)).rowcount > 0


# ---------------------------------------------------------------- what becomes of it


def judge(lab: Lab, name: str, run: Path) -> tuple[str, list[str]]:
    """(told, refused, equal or silent; where the end is another)."""
    places = [run, *sorted(run.glob("children/*"))]
    if any(tell(place) for place in places):
        return "told", []
    if lab.train(name, run) != 0:
        return "refused", []
    other = compare(lab.ends[name], run)
    return "silent" if other else "equal", other


def tell(place: Path) -> bool:
    """Whether `shuhari doctor` finds fault with a run, or finds none."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return bool(main_of_shuhari(["doctor", str(place)]))
        except SystemExit as error:
            return bool(error.code)


def try_all(
    lab: Lab, n: int, do: Callable[[Path, random.Random], tuple[str, str]], rng: random.Random, what: str
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Kind -> how often what became of it; the silent ones in words."""
    found, bad = dict[str, Counter[str]](), list[str]()
    half = {name: lab.folder / "half" / name for name in NAMES}
    for i in range(n):
        name, run = NAMES[i % len(NAMES)], lab.place()
        if not half[name].exists():
            lab.stop(name)
        shutil.copytree(half[name], run)
        kind, at = do(run, rng)
        end, other = judge(lab, name, run)
        found.setdefault(kind, Counter())[end] += 1
        if end == "silent":
            bad.append(f"{what} {kind} of {at} in {name}, {run}: {other[0]}")
            print(bad[-1], file=sys.stderr)
        else:
            shutil.rmtree(run)
        if i % 10 == 9:
            print(f"{what}: {i + 1} of {n}, {len(bad)} silent", file=sys.stderr, flush=True)
    return found, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, n in (("kills", 200), ("damages", 200), ("edits", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=n)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    lab = Lab(folder)
    try:
        damages, bad = try_all(lab, args.damages, damage, random.Random(f"{args.seed} damages"), "damage")
        edits, more = try_all(lab, args.edits, edit, random.Random(f"{args.seed} edits"), "edit")
        hits, worst = kill(lab, args.kills, random.Random(f"{args.seed} kills"))
    finally:
        lab.driver.close()
    ends = ("told", "refused", "equal", "silent")
    rows = [(what, kind, *(str(found[kind][end]) for end in ends))
            for what, found in (("damage", damages), ("edit", edits)) for kind in sorted(found)]  # fmt: skip
    print("\n".join(table(("fault", "kind", *ends), *rows)))
    print()
    kills = [(name, str(hits[name])) for name in NAMES]
    print("\n".join(table(("killed", "times"), *kills, ("all", str(hits.total())))))
    for line in (bad := [*bad, *more, *worst]):
        print(line)
    print(f"{hits.total()} kills, {args.damages} damages, {args.edits} edits: {len(bad)} went wrong")
    if not bad:
        shutil.rmtree(folder)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
