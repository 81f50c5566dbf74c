"""Proves that a result still stands after a change of code: replays a part of every arm and compares it bit for bit.

For one seed, the warm start of each arm is run again, then the arm until each of its curves has two points that differ,
and one arm to its end (by default the method's). Each point must equal the stored one in every stored digit, and each
reported number that of the original run, if that still exists. Simulations are computed again for all seeds. Results
that depend on the clock cannot be proved: their modules must be unchanged.
"""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from shuhari.data import EMPTY, nearest
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.pool import ClaimError, Progress, Work, drive, is_changed
from shuhari.lab.claims.quantities import Evidence, read_values
from shuhari.lab.claims.result import compute_hashes, find_restated, find_stale, list_points, list_quantities, round_to
from shuhari.lab.claims.runs import CLOCK, PACKAGES, VALUELESS, Job, find_own, make_evidence, make_name, plan_runs
from shuhari.loop.machine import processor, versions
from shuhari.ports.hooks import ability
from shuhari.store.directory import Run
from shuhari.store.files import StoreError, count_cores, replace_file
from shuhari.store.schema import FILE

REPLAY = "replay.json"  # in the folder of a replay: what it reported
POINTS = 2  # of each curve, at least, its start included
DEPTHS = ("quick", "spot", "whole")  # which arms are replayed to their end: none, one, all


@dataclass(frozen=True)
class Proof:
    """The outcome: whether the result `stands` (None: cannot be decided here), and `why` not; `steps`: arm -> steps
    replayed; `points`: how many were compared; `whole`: the arms replayed to their end. compared: "columns" if every
    number that a replay reported was compared with the original run, "points" if only the curves were, as some run no
    longer exists."""

    stands: bool | None
    why: str = ""
    steps: Mapping[str, int] = EMPTY
    points: int = 0
    compared: str = "points"
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Replay:
    """A replay of part of an arm's run: until each metric in `wanted` was reported that many times; to the end if it is
    empty."""

    claim: str
    job: Job
    path: Path
    wanted: Mapping[str, int] = field(default_factory=dict)

    @property
    def after(self) -> Job | None:
        return self.job.after

    @property
    def name(self) -> str:
        return f"{self.claim} {self.job.name}"

    @property
    def done(self) -> bool:
        return (self.path / REPLAY).is_file()

    def estimate_share(self) -> float | None:
        return 0.0 if self.path.is_dir() else None

    def make(self) -> str:
        """In a worker: train as `Job.make` does, until enough was reported."""
        from shuhari.loop.roles import load_initial
        from shuhari.loop.study import train

        origin, at = str(self.after.path) if self.after else "", self.path / "run"
        try:
            if is_changed() or find_own(self.job.recipe) != self.job.own:
                return "its source changed meanwhile: give the command again"
            seen: dict[str, int] = {}
            shutil.rmtree(self.path, ignore_errors=True)
            reports = train(self.job.recipe, at, init=load_initial(origin), origin=origin, rehearsal=False)
            for report in reports:
                row = "study" not in self.job.recipe.tree or report["stage"] == "study"
                for name in report if row else ():
                    seen[name] = seen.get(name, 0) + 1
                if self.wanted and all(seen.get(n, 0) >= times for n, times in self.wanted.items()):
                    break
            reports.close()  # type: ignore[attr-defined]
            columns = Run(at).metrics()
            found = {"columns": columns, "before": self._read_start(at, columns["stage"][-1])}
        except VALUELESS:
            found = {"columns": Run(at).metrics() if (at / FILE).is_file() else {}, "before": {}}
        except Exception as error:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            return f"{type(error).__name__}: {error} (traceback in error.txt there)"
        replace_file(self.path / REPLAY, [json.dumps(found).encode()])
        shutil.rmtree(at, ignore_errors=True)
        return ""

    def _read_start(self, at: Path, stage: str) -> dict[str, float]:
        """Return the scores when the last stage began, of the run at `at` that has reached `stage`; empty before
        that."""
        last = "study" not in self.job.recipe.tree and stage == self.job.recipe.stages[-1]["name"]
        return dict(Run(at).load()["progress"]["before"]) if last else {}


def prove(
    claims: Sequence[tuple[Claim, Mapping[str, Any]]],
    root: Path,
    *,
    depth: str = "spot",
    workers: int = 0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> list[Proof | ClaimError]:
    """Return for each claim and result whether it stands, proved by runs under `root`, or the error if something could
    not be run. depth, for one seed: "spot" replays one arm to its end, the method's if possible; "whole" all arms;
    "quick" none. If a result stands, links are made so that the claim finds its existing runs again."""
    if depth not in DEPTHS:
        raise ValueError(f"depth is {depth!r}: {nearest(depth, DEPTHS)}")
    root = root.resolve()
    claims = [(claim.with_seeds(result["seeds"]), result) for claim, result in claims]
    replays = [_plan_replays(claim, result, root, depth) for claim, result in claims]
    jobs: dict[Path, Work] = {}
    for replay in [
        r
        for each in replays
        for r in each.values()
        if not isinstance(r, str)
    ]:
        if replay.after is not None:
            jobs.setdefault(replay.after.path, replay.after)
        jobs.setdefault(replay.path, replay)
    with suppress(ClaimError):  # reported by claim, below
        order = sorted(jobs.values(), key=lambda j: (j.after is not None, isinstance(j, Replay) and bool(j.wanted)))
        drive(order, workers or count_cores(), tell, patient=True)
    out: list[Proof | ClaimError] = []
    for (claim, result), each in zip(claims, replays, strict=True):
        if lost := [r for r in each.values() if isinstance(r, Replay) and not r.done]:
            out.append(ClaimError("; ".join(f"{r.name}: {_describe_error(r)}" for r in lost)))
            continue
        proof = _judge(claim, result, each, root)
        if proof.stands and result["versions"].get("processor") == processor():
            _link_runs(claim, result, root)
        out.append(proof)
    return out


def _describe_error(replay: Replay) -> str:
    files = [w.path / "error.txt" for w in (replay, replay.after) if w is not None]
    lines = [f.read_text(encoding="utf-8").rstrip().rpartition("\n")[2] for f in files if f.is_file()]
    return f"{lines[0]} ({replay.path})" if lines else "it was stopped, or its source changed: give the command again"


def _plan_replays(claim: Claim, result: Mapping[str, Any], root: Path, depth: str) -> dict[str, Replay | str]:
    """Return arm -> its replay, or the reason why there is none."""
    if find_restated(claim, result) or any(ability(q, "alone") for q in list_quantities(claim)):
        return {}
    out: dict[str, Replay | str] = {}
    there = {(job.arm, job.seed): job for job in plan_runs(claim, root)} if result["arms"] else {}
    for name, arm in result["arms"].items():
        curves, seeds = arm["curves"], [s for s in result["seeds"] if s not in arm.get("diverged", ())]
        if _is_by_clock(claim.arms[name]):
            out[name] = "its rollouts lag by the real clock"
        elif not curves or not seeds:
            out[name] = "it keeps no curve"
        else:
            i, job = result["seeds"].index(seeds[0]), there[name, seeds[0]]
            starts = {m: m.startswith("evaluate/") and c[i]["x"][:1] == [0.0] for m, c in curves.items()}
            times = {m: _count_points(c[i]["y"]) - starts[m] for m, c in curves.items()}
            first = not any(isinstance(r, Replay) for r in out.values())
            wanted = {} if depth == "whole" or (depth == "spot" and first) else times
            mark = make_name(job.path.name, *(f"{m} {n}" for m, n in sorted(wanted.items())))
            out[name] = Replay(claim.name, job, root / "replays" / f"{mark}-s{job.seed}", wanted)
    return out


def _count_points(y: Sequence[float | None]) -> int:
    """Count the points of a curve to compare: up to the first that differs from the one before, at least POINTS; all if
    none differs. A constant curve (two scores of 0) would prove nothing about the code."""
    change = next((i + 1 for i in range(1, len(y)) if y[i] != y[i - 1]), len(y))
    return min(max(change, POINTS), len(y))


def _is_by_clock(recipe: Any) -> bool:
    """Whether a run's staleness depends on the real clock, so that it is not reproducible."""
    engines = [stage.get("engine", EMPTY) for stage in recipe.stages]
    return any(e.get("staleness", 0) and not e.get("virtual") for e in engines)


def _judge(claim: Claim, result: Mapping[str, Any], replays: Mapping[str, Replay | str], root: Path) -> Proof:
    if why := find_restated(claim, result):
        return Proof(False, why)
    clock = [f"arm {name!r}: {why}" for name, why in replays.items() if isinstance(why, str)]
    if any(ability(q, "alone") for q in list_quantities(claim)):
        clock.append("it compares speeds")
    if clock:
        if why := find_stale(claim, result):
            return Proof(False, f"{why}; only measuring again can show what that changes: {clock[0]}")
        return Proof(None, f"{clock[0]}: bits prove nothing here")
    steps, why, gone = dict[str, int](), _compare_simulations(claim, result), False
    compared = len(claim.seeds) * sum(not ability(q, "trains") for q in list_quantities(claim))
    for name, replay in replays.items():
        assert isinstance(replay, Replay)
        stored = json.loads((replay.path / REPLAY).read_text())
        run = make_evidence(replay.job, claim, stored["columns"], stored["before"])
        steps[name] = len(run.spent)
        i = result["seeds"].index(replay.job.seed)
        for metric, curves in result["arms"][name]["curves"].items():
            there = list_points(run, metric)
            compared += len(there["x"])
            why = why or _compare_curve(metric, curves[i], there, whole=not replay.wanted)
        runs = result["arms"][name].get("runs")
        unlike = _compare_columns(stored["columns"], root / runs[i]) if runs else None
        gone, why = gone or unlike is None, why or unlike or ""
        if why and not why.startswith("arm "):
            why = f"arm {name!r}, seed {replay.job.seed}: {why}"
    at_end = tuple(name for name, r in replays.items() if isinstance(r, Replay) and not r.wanted)
    how = "columns" if steps and not gone else "points"
    stands: bool | None = not why
    then, here = result["versions"], versions()
    other = [f"{p} {then[p]} there, {here.get(p)} here" for p in PACKAGES if p in then and then[p] != here.get(p)]
    if why and other:
        stands, why = None, f"{why}; but it was measured elsewhere ({', '.join(other)})"
    return Proof(stands, why, steps, compared, how, at_end)


def _compare_simulations(claim: Claim, result: Mapping[str, Any]) -> str:
    """Return the first simulation that no longer gives the stored number; "" if there is none."""
    for i, (check, quantity) in enumerate(zip(claim.checks, list_quantities(claim), strict=True)):
        then = result["checks"][i].get("values", EMPTY).get(check.rule.arm)
        if not ability(quantity, "trains") and then is not None:
            now = [round_to(v) for v in read_values(quantity, map(Evidence, claim.seeds), check.rule.arm, i)]
            if now != then:
                at = next(k for k, (a, b) in enumerate(zip(then, now, strict=True)) if a != b)
                return f"check {i}, seed {claim.seeds[at]}: simulated {then[at]} then, {now[at]} now"
    return ""


def _compare_curve(metric: str, then: Mapping[str, Any], now: Mapping[str, Any], *, whole: bool) -> str:
    """Return where a replayed curve differs from the stored one; "" if it agrees and has enough points."""
    n = len(then["x"]) if whole else _count_points(then["y"])
    if len(now["x"]) < n or len(now["x"]) > len(then["x"]):
        return f"{metric} has {len(now['x'])} points now, of {len(then['x'])} then"
    for x, y, x_now, y_now in zip(then["x"], then["y"], now["x"], now["y"], strict=False):
        if (x, y) != (x_now, y_now):
            return f"{metric} at {x:g} was {y}, and is {y_now} at {x_now:g}"
    return ""


def _compare_columns(columns: Mapping[str, Sequence[Any]], path: Path) -> str | None:
    """Return the first number of a replay that differs from the run at `path`; "" if there is none, None if the run no
    longer exists or is shorter than the replay."""
    try:
        there = Run(path).metrics()
    except StoreError:
        return None
    for i, step in enumerate(columns["step"][: len(there["step"])]):
        for name in columns:
            if name in there and not name.startswith(CLOCK) and repr(there[name][i]) != repr(columns[name][i]):
                return f"{name} at step {step} was {there[name][i]}, and is {columns[name][i]}"
    return "" if len(columns["step"]) <= len(there["step"]) else None


def _link_runs(claim: Claim, result: Mapping[str, Any], root: Path) -> None:
    """Link the current names of runs to the runs below `root` that the result was measured with."""
    jobs = {(job.arm, job.seed): job.path for job in plan_runs(claim, root)} if result["arms"] else {}
    for arm, kept in result["arms"].items():
        for seed, name in zip(result["seeds"], kept.get("runs", ()), strict=False):
            old, new = root / name, jobs[arm, seed]
            inside = old.resolve().is_relative_to(root.resolve())  # the result file may come from anybody
            if inside and old.is_dir() and old != new and not new.exists():
                new.unlink(missing_ok=True)
                new.symlink_to(old.resolve(), target_is_directory=True)


def settle(claim: Claim, result: Mapping[str, Any], proof: Proof) -> dict[str, Any]:
    """Return the result updated by the proof: with current hashes and `proved` if it stands, with `stale` and the
    reason if it does not, unchanged if that is undecided."""
    rest = {k: v for k, v in result.items() if k != "stale"}
    if proof.stands is None:
        return dict(result)
    if not proof.stands:
        return {**rest, "stale": proof.why}
    then, now = result["hashes"], compute_hashes(claim)
    used = {**now["shared"], **now["modules"]}
    mine = {name: d for name, d in used.items() if name in then["modules"] or name in now["modules"]}
    shared = {name: d for name, d in used.items() if name not in mine}
    new = {**then, "modules": mine, "shared": shared, "core": now["core"]}
    proved = {"from": then["core"], "to": now["core"], "date": date.today().isoformat(), "steps": dict(proof.steps)}
    proved |= {"points": proof.points, "compared": proof.compared, "whole": list(proof.whole), "processor": processor()}
    return {**rest, "hashes": new, "proved": proved}
