"""Runs whose groups are played by real Ray actors, on one Ray for the module: the groups are those that the run would
play itself, whoever is killed meanwhile. What a run does with its workers is tested without Ray in `test_crew`.

Starting Ray takes some seconds, and each actor imports torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_crew import make, play

from shuhari.config.overlay import RecipeError
from shuhari.distributed import rays
from shuhari.distributed.messages import LostWorkerError
from shuhari.distributed.rays import RayHand, World
from shuhari.loop.run import loop, open_run

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(300)  # a machine under load starts processes slowly


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    made.open()
    yield made
    made.close()


def follow(recipe: Any, at: dict[int, Any]) -> tuple[list[dict[str, Any]], Any]:
    """The reports of a run with two workers; after step n `at[n](run)` is called."""
    run, reports = open_run(recipe.with_settings({"distributed.workers": 2})), []
    for report in loop(run):
        reports.append({k: v for k, v in report.items() if k != "seconds"})
        if call := at.get(report["step"]):
            call(run)
    return reports, run


def without_bits(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "bits" and "lost_groups" not in k} for r in reports]


def kill_one(run: Any) -> None:
    os.kill(run.ctx.crew.workers[0].hand.pid, signal.SIGKILL)


def test_actors_give_the_groups_of_the_run_and_a_killed_one_is_replaced(tmp_path: Path, world: World) -> None:
    recipe = make(tmp_path)
    alone, spent, _ = play(recipe)
    reports, run = follow(recipe, {2: kill_one})
    assert without_bits(reports)[:2] == without_bits(alone)[:2]
    for name in ("reward/mean", "rollout/length", "evaluate/greedy"):  # other rows have shared a forward from there on
        assert reports[2][name] == pytest.approx(alone[2][name], abs=1e-5)
    ledger = {k: v for k, v in run.ctx.ledger.items() if "lost_groups" not in k}
    assert ledger == spent and run.ctx.crew.lost >= 1


def test_an_asynchronous_run_goes_on_over_a_kill_within_its_bound(tmp_path: Path, world: World) -> None:
    stale: list[int] = []

    def look(run: Any) -> None:
        for t in (t for group in run.ctx.groups for t in group):
            stale.extend(run.ctx.version - 1 - int(v) for s in t.steps for v in s.version[s.mask])

    def look_and_kill(run: Any) -> None:
        look(run)
        kill_one(run)

    reports, _ = follow(make(tmp_path, "\n[engine]\nstaleness = 1\n"), {1: look_and_kill, 2: look, 3: look})
    assert [r["step"] for r in reports] == [1, 2, 3]
    assert len(stale) >= 3 * 4 * 4 and min(stale) >= 0 and max(stale) <= 1


OWN = """
import json, logging, os, signal, sys
logging.basicConfig()
sys.path[:0] = sys.argv[2:]
import torch; torch.set_num_threads(1)
from pathlib import Path
from test_crew import make
from test_rays import follow, without_bits
if __name__ == "__main__":
    def ports():
        found = []
        files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
        for line in (line for file in files for line in file.read_text().splitlines()[1:]):
            place, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A":
                found.append((place.rpartition(":")[0], inode))
        return found
    def sockets(pid):
        out = set()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                out.add(os.readlink(fd))
            except OSError:
                pass
        return out
    def family():
        rows = [p.read_text() for p in Path("/proc").glob("[0-9]*/stat")]
        parents = {int(r.split()[0]): int(r.rpartition(")")[2].split()[1]) for r in rows}
        mine = {os.getpid()}
        while more := {p for p, q in parents.items() if q in mine} - mine:
            mine |= more
        return mine
    def strike(run):
        global seen
        pids = family()
        own = {s for pid in pids for s in sockets(pid)}
        seen = sorted({host for host, inode in ports() if f"socket:[{inode}]" in own})
        (raylet,) = [p for p in pids if Path(f"/proc/{p}/comm").read_text().strip() == "raylet"]
        told = {"hosts": seen, "token": len(os.environ.get("RAY_AUTH_TOKEN", ""))}
        print("SEEN " + json.dumps(told), flush=True)
        os.kill(raylet, signal.SIGKILL)
    try:
        follow(make(Path(sys.argv[1])), {1: strike})
        said = "nothing"
    except RuntimeError as error:
        said = str(error)
    left = sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in family() - {os.getpid()})
    told = {"said": said, "token": os.environ.get("RAY_AUTH_TOKEN", ""), "left": left}
    print("RESULT " + json.dumps(told), flush=True)
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}  # as /proc/net has it


def test_a_ray_of_our_own_keeps_to_itself_and_ends_the_run_in_words_where_its_raylet_dies(tmp_path: Path) -> None:
    """In a process of its own: the Ray of this one is the module's."""
    (tmp_path / "own.py").write_text(OWN)
    here = str(Path(__file__).parent)
    command = [sys.executable, str(tmp_path / "own.py"), str(tmp_path), here, str(Path(here).parent)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}  # the module's own
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=env)
    told = {line.split(" ")[0]: line for line in done.stdout.splitlines() if line.startswith(("SEEN ", "RESULT "))}
    assert "SEEN" in told, done.stderr[-3000:]
    seen = json.loads(told["SEEN"].removeprefix("SEEN "))
    assert seen["hosts"] and set(seen["hosts"]) <= LOOPBACK and seen["token"] == 64
    if "RESULT" in told:  # else Ray's core has ended the whole process, as it may where its raylet is gone
        found = json.loads(told["RESULT"].removeprefix("RESULT "))
        assert "raylet has ended" in found["said"] and "the same command goes on from there" in found["said"]
        assert found["token"] == "" and found["left"] == []


def settle(error: Exception) -> Future[bytes]:
    """What a hand gives for a call that ends so at Ray."""
    found: Future[Any] = Future()
    found.set_exception(error)
    actor = SimpleNamespace(play=SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: found)))
    return RayHand(actor, None, 3).send("play", b"")


def test_what_a_method_raises_is_no_death_of_its_worker() -> None:
    from ray import exceptions

    own = exceptions.RayTaskError("play", "", KeyError("of mine"), "", 1, "")
    raised: Any = settle(own.as_instanceof_cause()).exception()
    assert type(raised) is KeyError and raised.__notes__ == ["raised in worker 3"]
    for death in (exceptions.ActorDiedError(), exceptions.WorkerCrashedError(), exceptions.NodeDiedError("")):
        assert type(settle(death).exception()) is LostWorkerError
    lost = exceptions.ObjectLostError("0" * 56, None, "")  # of weights, met inside a method
    assert type(settle(exceptions.RayTaskError("reach", "", lost, "", 1, "")).exception()) is LostWorkerError


class Cluster:
    """A stand-in for the package: it keeps where it is connected to."""

    def __init__(self, at: str = "") -> None:
        self.at = at

    def is_initialized(self) -> bool:
        return bool(self.at)

    def init(self, address: str, **_: Any) -> None:
        self.at = address

    def shutdown(self) -> None:
        self.at = ""

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.at)


def test_a_cluster_that_is_joined_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    monkeypatch.setattr(rays, "import_ray", lambda: cluster)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    one = World("10.0.0.1:6379")
    one.open()
    assert cluster.at == "10.0.0.1:6379" and "asks for no token" in caplog.text
    one.close()
    assert cluster.at == ""


def test_a_ray_that_the_process_has_stays_and_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("127.0.0.1:6379")
    monkeypatch.setattr(rays, "import_ray", lambda: cluster)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for address in ("auto", "127.0.0.1:6379", "localhost:6379", ""):
        caplog.clear()
        one = World(address)
        one.open()
        one.close()
        assert cluster.at and ("asks for no token" in caplog.text) == bool(address)
    for address in ("10.9.9.9:6379", "127.0.0.1:6380"):
        with pytest.raises(RecipeError, match=r"connected to Ray at '127\.0\.0\.1:6379'"):
            World(address).open()


def test_doctor_says_what_each_node_has(world: World) -> None:
    from shuhari.tools.cluster import compare, describe_here, report_cluster

    found = report_cluster()
    assert len(found["nodes"]) == 1 and found["differ"] == []
    assert found["nodes"][0]["versions"] == describe_here()["versions"]
    other = {**found["nodes"][0], "versions": {**describe_here()["versions"], "torch": "1.0"}}
    assert any("torch 1.0, here" in line for line in compare(describe_here(), other))
    assert "did not answer" in compare(describe_here(), {"node": "n", "error": "gone"})[0]
