"""Runs whose groups are played by real Ray actors, on one Ray for the module: the groups are those that the run would
play itself, whoever is killed meanwhile. What a run does with its workers is tested without Ray in `test_crew`.

Starting Ray takes some seconds, and each actor imports torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_crew import check_same, make, play

from shuhari.config.overlay import RecipeError
from shuhari.desk.threads import share_the_machine
from shuhari.distributed import ray_world, rays_apart
from shuhari.distributed.messages import LostWorkerError
from shuhari.distributed.ray_world import World
from shuhari.distributed.rays import RayHand
from shuhari.distributed.rays_apart import RaysApart
from shuhari.loop.run import loop, open_run

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(600)  # a machine under load starts processes slowly


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    share_the_machine()
    made = World()
    made.open()
    yield made
    made.close()


def follow(recipe: Any, at: dict[int, Any], workers: int = 2) -> tuple[list[dict[str, Any]], Any]:
    """The reports of a run with workers; after step n `at[n](run)` is called."""
    run, reports = open_run(recipe.with_settings({"distributed.workers": workers})), []
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
    recipe, nice = make(tmp_path), []

    def look(run: Any) -> None:
        nice.append(os.getpriority(os.PRIO_PROCESS, run.ctx.crew.workers[0].hand.pid))

    alone, spent, _ = play(recipe)
    reports, run = follow(recipe, {1: look, 2: kill_one})
    assert nice == [os.getpriority(os.PRIO_PROCESS, 0)]  # Ray's own default is 15 above it
    check_same(without_bits(reports), without_bits(alone))
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
from test_crew import make, play
from test_rays import find_marked, follow, without_bits
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
    def strike(run):
        pids = find_marked(os.environ["MARK"])
        own = {s for pid in pids for s in sockets(pid)}
        hosts = sorted({host for host, inode in ports() if f"socket:[{inode}]" in own})
        (raylet,) = [p for p, name in pids.items() if name == "raylet"]
        told = dict(x.split("=", 1) for x in Path(f"/proc/{raylet}/environ").read_text().split("\\0") if "=" in x)
        seen.update(hosts=hosts, token=len(told["RAY_AUTH_TOKEN"]), here=os.environ.get("RAY_AUTH_TOKEN", ""))
        os.kill(raylet, signal.SIGKILL)
    seen, recipe = {}, make(Path(sys.argv[1]))
    reports, run = follow(recipe, {1: strike}, 1)
    alone, spent, _ = play(recipe)
    told = {"seen": seen, "begun": run.ctx.crew.yard.begun, "lost": run.ctx.crew.lost, "ledger": run.ctx.ledger}
    told |= {"spent": spent, "reports": without_bits(reports), "alone": without_bits(alone)}
    told |= {"left": list((set(find_marked(os.environ["MARK"])) - {os.getpid()}))}
    print("RESULT " + json.dumps(told), flush=True)
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}  # as /proc/net has it


def find_marked(mark: str) -> dict[int, str]:
    """pid -> name of the processes whose environment has a mark."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if mark.encode() in (place / "environ").read_bytes():
                found[int(place.name)] = (place / "comm").read_text().strip()
    return found


def make_environment(mark: str) -> dict[str, str]:
    """That of this process, without what a Ray has left there."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return {**env, "RAY_worker_niceness": "0", "MARK": mark, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def wait_until(true: Callable[[], Any], seconds: float = 300.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not true():
        time.sleep(0.05)
    return bool(true())


def test_a_ray_of_our_own_keeps_to_itself_and_is_begun_again_where_its_raylet_dies(tmp_path: Path) -> None:
    """In a process of its own: the Ray of this one is the module's. The groups are those of the run without workers."""
    (tmp_path / "own.py").write_text(OWN)
    here, mark = str(Path(__file__).parent), secrets.token_hex(16)
    command = [sys.executable, str(tmp_path / "own.py"), str(tmp_path), here, str(Path(here).parent)]
    env = make_environment(mark)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560, env=env)
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, done.stderr[-3000:]
    found = json.loads(told[0].removeprefix("RESULT "))
    seen = found["seen"]
    assert seen["hosts"] and set(seen["hosts"]) <= LOOPBACK and seen["token"] == 64 and seen["here"] == ""
    assert found["begun"] == 2 and found["lost"] >= 1
    said = r"Ray's (raylet|process) has ended[\s\S]*: it was started again"  # its library may end the process first
    assert re.search(said, done.stderr), done.stderr
    ledger = {k: v for k, v in found["ledger"].items() if "lost_groups" not in k}
    assert ledger == found["spent"] and [r["step"] for r in found["reports"]] == [1, 2, 3]
    check_same(found["reports"], found["alone"])
    assert wait_until(lambda: not find_marked(mark), 30.0), find_marked(mark)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "gcs_server"), (signal.SIGTERM, "raylet")])
def test_a_stop_while_ray_starts_leaves_nothing_of_it(tmp_path: Path, number: int, name: str) -> None:
    mark = secrets.token_hex(16)
    make(tmp_path)
    command = [sys.executable, "-m", "shuhari", "train", str(tmp_path / "sums.toml"), "--run", str(tmp_path / "run")]
    command += ["--set", f"reward.own.use={tmp_path / 'varied.py'}:grade", "--set", "distributed.workers=1"]
    with subprocess.Popen(command, env=make_environment(mark), stderr=subprocess.PIPE, text=True) as run:
        begun = wait_until(lambda: run.poll() is not None or name in find_marked(mark).values())
        run.send_signal(number)
        said = run.communicate(timeout=120)[1]
    assert begun and run.returncode == 130, said
    assert "starting Ray with 1 worker\n" in said and "has taken" not in said
    assert wait_until(lambda: not find_marked(mark), 30.0), find_marked(mark)


@pytest.mark.parametrize(("address", "begun", "why"), [("", 4, "Ray number 4"), ("10.0.0.1:6379", 1, "was joined")])
def test_what_is_not_begun_again(address: str, begun: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rays_apart, "Side", lambda *_: SimpleNamespace(close=lambda: None, loss=""))
    yard = RaysApart(1, address)
    for _ in range(begun - 1):
        yard.restart()
    with pytest.raises(LostWorkerError, match=why):
        yard.restart()
    assert yard.begun == begun


@pytest.mark.parametrize(
    ("address", "why"),
    [("ray://a:1", "'ray://a:1': expected `auto`"), ("127.0.0.1:9", "no Ray answers at '127.0.0.1:9'")],
)
def test_a_process_that_cannot_begin_says_why(address: str, why: str) -> None:
    with pytest.raises(RecipeError, match=rf"distributed\.address: {why}"):
        RaysApart(1, address)


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
    monkeypatch.setattr(ray_world, "import_ray", lambda: cluster)
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
    monkeypatch.setattr(ray_world, "import_ray", lambda: cluster)
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
    from shuhari.desk.cluster import compare, describe_here, report_cluster

    found = report_cluster()
    assert len(found["nodes"]) == 1 and found["differ"] == []
    assert found["nodes"][0]["versions"] == describe_here()["versions"]
    other = {**found["nodes"][0], "versions": {**describe_here()["versions"], "torch": "1.0"}}
    assert any("torch 1.0, here" in line for line in compare(describe_here(), other))
    assert "did not answer" in compare(describe_here(), {"node": "n", "error": "gone"})[0]
