"""Replay on the board: it says what the library says; what may be asked; processes that fail, print or never end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from board_runs import TOKEN
from starlette.testclient import TestClient

from shuhari.desk.api import train
from shuhari.desk.board import app as pages
from shuhari.desk.board import child
from shuhari.desk.board.app import make_app
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.child import Desk
from shuhari.desk.board.views import replay
from shuhari.desk.replay.what_if import TAKEN, what_if
from shuhari.desk.serving.refusals import Refused
from shuhari.store import Run
from small_runs import write_sums

LOCAL = "http://127.0.0.1:6060"
KEY = {"authorization": f"Bearer {TOKEN}"}
GRADERS = """
def sevens(completions, k=7, **columns):
    return [float(str(k) in c) for c in completions]

def loud(completions, **columns):
    print("{\\n said by a grader")
    return [None if "7" in c else 2.0 for c in completions]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graders.py and runs/kept, which keeps every group and checkpoint."""
    home = tmp_path_factory.mktemp("replay")
    (home / "graders.py").write_text(GRADERS)
    recipe = write_sums(2, 4) + '[store]\nevery = 1\nkeep = 9\ngroups = ["all"]\n[reward.sevens]\n'
    (home / "sums.toml").write_text(recipe + 'use = "graders.py:sevens"\n')
    train(home / "sums.toml", home / "runs" / "kept")
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def client(home: Path) -> Iterator[TestClient]:
    with TestClient(make_app("runs", TOKEN), base_url=LOCAL, headers=KEY) as client:
        yield client


def refused(reply: Any, status: int) -> str:
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["message"])


def post(client: TestClient, name: str, body: Any) -> Any:
    """With half of a surrogate pair too."""
    return client.post(f"/api/{name}", content=json.dumps(body), headers={"content-type": "application/json"})


# ---------------------------------------------------------------- what it says


def test_graders_and_settings_are_told(client: TestClient, home: Path) -> None:
    told = client.get("/api/replay?run=kept").json()
    assert told["steps"] == [1, 2] and told["rewards"]["sevens"].endswith("graders.py:sevens")
    assert told["local"] and told["folder"] == str(home)
    assert told["settings"]["part.policy.optimiser.lr"] == "0.01"
    assert told["settings"]["part.policy.epochs"] == "1" and told["settings"]["part.policy.terms.loss.low"] == "0.2"
    assert {key.partition(".")[0] for key in told["settings"]} <= {*TAKEN, "reward"}
    graders = {g["name"]: g for g in client.get("/api/graders").json()}
    assert graders["repetition"]["doc"] and "function" not in graders
    assert {"name", "type", "bounds", "doc", "default", "required"} == graders["repetition"]["settings"][0].keys()
    assert client.get("/api/replay?run=../kept").status_code == 404


def test_a_setting_of_a_stage_is_told_as_its_own(home: Path, tmp_path: Path) -> None:
    text = write_sums(2, 4) + "[[stage]]\nname = 'one'\nsteps = 1\n[[stage]]\nname = 'two'\nsteps = 1\n"
    (tmp_path / "two.toml").write_text(text + "[stage.part.policy]\noptimiser.lr = 1e-3\n")
    train(tmp_path / "two.toml", tmp_path / "runs" / "two")
    told = replay.describe_replay(Catalogue(tmp_path / "runs"), "two")
    assert told["stage"] == "two" and told["folder"] == ""
    assert told["settings"]["stage.two.part.policy.optimiser.lr"] == "0.001"
    assert "part.policy.optimiser.lr" not in told["settings"] and "part.policy.terms.loss.low" in told["settings"]


def test_the_steps_that_can_be_made_again_are_those_of_the_terminal(tmp_path: Path) -> None:
    """By `find_start`, of a run whose last two checkpoints are kept: those of its first stage, which is repeated, begin
    where no checkpoint is left."""
    from shuhari.desk.replay.steps import find_state
    from shuhari.desk.replay.update import find_start

    stages = "[[stage]]\nname = 'one'\nsteps = 2\nrepeat = 2\n[[stage]]\nname = 'two'\nsteps = 4\n"
    (tmp_path / "two.toml").write_text(write_sums(6, 4) + "[store]\nkeep = 2\nevery = 1\n" + stages)
    train(tmp_path / "two.toml", tmp_path / "runs" / "two")
    stored, again = Run(tmp_path / "runs" / "two"), []
    for step in stored.kept_steps():
        with suppress(ValueError):
            find_start(stored, find_state(stored.metrics(), step))
            again.append(step)
    assert replay.describe_replay(Catalogue(tmp_path / "runs"), "two")["again"] == again
    assert 0 < len(again) < len(stored.kept_steps()), "the case is worth nothing where all can, or none"


def test_regrade_says_what_the_library_says(client: TestClient, home: Path) -> None:
    from shuhari.desk.replay.regrade import regrade

    asked = {"run": "kept", "grader": "graders.py:loud", "name": "sevens", "first": 2, "last": 2,
             "settings": ["reward.weights.sevens=1"]}  # fmt: skip
    reply = client.post("/api/regrade", json=asked)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    want = regrade("kept", ["sevens=graders.py:loud"], first=2, last=2, sets=asked["settings"], limit=20)
    for key in ("rewards", "reward", "advantage", "mixed", "steps", "whole", "graders", "weights", "failed"):
        assert found[key] == json.loads(json.dumps(want[key])), key
    assert found["changes"] and len(found["changes"]) == len(want["changes"])
    for change in found["changes"]:
        group = client.get(f"/api/group?run=kept&id={change['id']}").json()
        said = ["".join(piece for s in e["steps"] for piece in s["pieces"] or ()) for e in group["episodes"]]
        assert group["step"] == 2 and change["text"] and any(change["text"] in text for text in said), said


def test_what_if_says_what_the_library_says(client: TestClient, home: Path) -> None:
    sets = ["collect.advantage.scale=none"]
    reply = client.post("/api/what-if", json={"run": "kept", "step": 2, "settings": sets})
    assert reply.status_code == 200, reply.text
    found, want = reply.json(), json.loads(json.dumps(what_if("kept@2", sets)))
    for key in ("configured", "changed", "reported", "cosine", "notes", "batch", "weights", "settings"):
        assert found[key] == want[key], key
    assert found["all"] == {"groups": 4, "episodes": 16} and len(found["points"]) == 16
    assert all(g["id"] is not None and g["step"] == 2 for g in found["groups"])


def test_a_mistake_comes_back_in_the_words_of_the_terminal(client: TestClient) -> None:
    wrong = {"run": "kept", "step": 2, "settings": ["part.policy.optimiser.lrr=1"]}
    message = refused(client.post("/api/what-if", json=wrong), 422)
    assert "lrr" in message and "lr" in message and "Traceback" not in message


# ---------------------------------------------------------------- what may be asked


def test_it_needs_the_token(client: TestClient) -> None:
    for name in ("regrade", "what-if"):
        for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}):
            assert client.post(f"/api/{name}", json={"run": "kept"}, headers=headers).status_code == 401
        assert client.get(f"/api/{name}?run=kept").status_code == 404


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of what would be done; nothing is."""
    asked: list[list[str]] = []

    class Told(Desk):
        async def run(self, words: Any, what: str, seconds: float | None = None) -> dict[str, Any]:
            asked.append(list(words))
            return {"changes": [], "to_mixed": [], "to_alike": [], "groups": []}

    monkeypatch.setattr(replay, "DESK", Told())
    return asked


def test_arguments_are_a_list_of_whole_options(client: TestClient, home: Path, desk: list[list[str]]) -> None:
    asked = {"run": "kept", "grader": "repetition", "settings": ["reward.repetition.n=3"], "last": 2}
    assert client.post("/api/regrade", json=asked).status_code == 200
    path = str(home / "runs" / "kept")
    assert desk == [
        ["regrade", "--limit=20", "--steps=..2", "--reward=repetition", "--set=reward.repetition.n=3", path]
    ]
    assert client.post("/api/what-if", json={"run": "kept", "step": 1}).status_code == 200
    assert desk[-1] == ["what-if", f"{path}@1"]


@pytest.mark.parametrize(
    "grader",
    ["../graders.py:sevens", "x/../graders.py:sevens", "/etc/graders.py:f", "away/evil.py:f", "os.system", "-x.py:f",
     "graders.py:", "graders.py:a b", "nosuch.py:f", "graders.py:f\x00", "graders.py:\ud800", "subprocess:run",
     "a:graders.py:f", "repetitio"],
)  # fmt: skip
def test_a_grader_is_registered_or_of_a_file_below_the_folder(
    client: TestClient, home: Path, tmp_path: Path, desk: list[list[str]], grader: str
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit")
    (home / "away").unlink(missing_ok=True)
    (home / "away").symlink_to(tmp_path)
    reply = post(client, "regrade", {"run": "kept", "grader": grader})
    assert reply.status_code in (400, 403) and "grader" in refused(reply, reply.status_code)
    assert desk == []
    if grader == "repetitio":
        assert "did you mean 'repetition'" in reply.text


SNEAKY = [
    'reward.sevens.use="/etc/graders.py:f"', "reward.x.use=../graders.py:f", 'reward."/etc/x.py:f".weight=1',
    "reward.x=os.system", "reward.x.function=os.system", 'part.policy.terms={x={use="away.py:F"}}',
    'collect."os.path".x=1', 'reward.x.use=["mine.Class"]', "reward.x.use=subprocess:run", "--debug", "-x=1",
    "a\x00=1", "a\n=1", "novalue", "a=\ud800", "a=" + "[" * 1900, "a=" + "1" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("setting", SNEAKY, ids=range(len(SNEAKY)))
def test_a_setting_names_no_other_code_and_no_option(client: TestClient, desk: list[list[str]], setting: str) -> None:
    for name, more in (("regrade", {"grader": "repetition"}), ("what-if", {"step": 1})):
        reply = post(client, name, {"run": "kept", "settings": ["reward.x.n=1", setting], **more})
        assert reply.status_code in (400, 403), reply.text
    assert desk == []


def test_texts_that_name_no_code_are_settings(client: TestClient, desk: list[list[str]]) -> None:
    fine = ["reward.x.marker='The answer is:'", "reward.sevens.use=graders.py:sevens", "part.p.optimiser.lr=1e-3"]
    assert client.post("/api/regrade", json={"run": "kept", "settings": fine}).status_code == 200
    assert desk[0][3:6] == [f"--set={text}" for text in fine]
    many = client.post("/api/regrade", json={"run": "kept", "settings": ["reward.x.n=1"] * 51})
    assert "at most 50" in refused(many, 400)


def test_beyond_loopback_no_code_is_named(home: Path, desk: list[list[str]]) -> None:
    far = TestClient(make_app("runs", TOKEN, local=False), base_url="http://board.example", headers=KEY)
    assert far.get("/api/replay?run=kept").json()["folder"] == ""
    for asked in ({"grader": "graders.py:sevens"}, {"settings": ["reward.sevens.use=graders.py:loud"]},
                  {"settings": ["reward.x.use=a.b c"]}):  # fmt: skip
        assert "loopback" in refused(far.post("/api/regrade", json={"run": "kept", **asked}), 403)
    assert far.post("/api/regrade", json={"run": "kept", "grader": "repetition"}).status_code == 200


# ---------------------------------------------------------------- the process


def do(code: str, seconds: float = 20) -> dict[str, Any]:
    return asyncio.run(Desk((sys.executable, "-c", code)).run([], "a test", seconds))


def test_an_object_is_found_behind_what_was_printed() -> None:
    assert do("print('{\\nhello'); print('{\\n  \"a\": {\\n  }\\n}')") == {"a": {}}
    with pytest.raises(Refused, match="gave no answer"):
        do("print('hello')")


def test_last_words_are_told_cut_and_printable() -> None:
    with pytest.raises(Refused) as told:
        do("import sys; print('loading', file=sys.stderr); sys.exit('error: no \\x1b[2J ' + 'x' * 10**6)")
    message = str(told.value)
    assert told.value.status == 422 and len(message) < 2100 and "\x1b" not in message
    with pytest.raises(Refused, match="SIGSEGV"):
        do("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(Refused, match="code 3"):
        do("raise SystemExit(3)")


def test_what_never_ends_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))\ntime.sleep(60)"
    )
    with pytest.raises(Refused, match="longer than 3 s") as told:
        do(code, 3)
    assert told.value.status == 504
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds; one that nobody waited for has ended too."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_what_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MOST", 1 << 20)
    with pytest.raises(Refused, match="more than 1 MB"):
        do("while True: print('x' * 10000)")


def test_one_at_a_time() -> None:
    async def both() -> None:
        desk = Desk((sys.executable, "-c", "import time; time.sleep(1); print('{\\n}')"))
        first = asyncio.create_task(desk.run([], "regrading kept"))
        await asyncio.sleep(0.1)
        with pytest.raises(Refused, match="regrading kept is being done") as told:
            await desk.run([], "another")
        assert told.value.status == 409
        assert await first == {} and await desk.run([], "again") == {}

    asyncio.run(both())


def test_it_ends_when_who_asked_has_gone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(replay, "DESK", Desk((sys.executable, "-c", code)))
    body = json.dumps({"run": "kept", "step": 1}).encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", **KEY}
    scope = {"type": "http", "method": "POST", "path": "/api/what-if", "query_string": b"", "root_path": "",
             "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}  # fmt: skip
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        while not (pid.is_file() and pid.read_text()):
            await asyncio.sleep(0.05)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert message["type"] != "http.response.start" or message["status"] == 499

    began = time.monotonic()
    asyncio.run(make_app("runs", TOKEN)(scope, receive, send))
    assert time.monotonic() - began < 30 and gone(int(pid.read_text()))
    assert not replay.DESK._taken.locked()


def test_views_that_are_coroutines_are_answered(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(runs: Catalogue, x: int) -> int:
        await asyncio.sleep(0.01)
        return x + 1

    monkeypatch.setattr(pages, "VIEWS", {"slow": slow})
    assert client.get("/api/slow?x=2").json() == 3
