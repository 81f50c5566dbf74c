"""Who may ask the board, what it refuses, and that a damaged run, or a hostile one, harms none of the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from board_runs import TOKEN
from starlette.testclient import TestClient

from listening import flooded, get, served
from shuhari.desk.board.app import HEADERS, make_app
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.runs import list_runs

LOCAL = "http://127.0.0.1:6060"
KEY = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def client(board_root: Path) -> TestClient:
    return TestClient(make_app(board_root, TOKEN), base_url=LOCAL)


@pytest.fixture
def far(board_root: Path) -> TestClient:
    """Of a board that listens beyond loopback."""
    return TestClient(make_app(board_root, TOKEN, local=False), base_url="http://board.example:6060")


def test_every_answer_forbids_what_comes_from_elsewhere(client: TestClient) -> None:
    for address in ("/", "/static/main.js", "/api/runs", "/api/nosuch", "/nosuch", "/static/../app.py"):
        reply = client.get(address)
        assert {k: reply.headers[k] for k in HEADERS} == HEADERS, address
        assert "access-control-allow-origin" not in reply.headers
    page = client.get("/").text
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page and "onclick" not in page


def test_the_page_has_no_address_of_elsewhere_and_reads_no_markup() -> None:
    from shuhari.desk.board.app import STATIC

    for path in STATIC.rglob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "//cdn",
        ):
            assert word not in text, f"{path.name} uses {word}"


@pytest.mark.parametrize(
    "path",
    ["/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..\\app.py", "/api/..%2f..%2fetc"],
)
def test_no_path_leads_out_of_the_page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (400, 404, 405)


@pytest.mark.parametrize(
    "name", ["../elsewhere/secret", "outside", "/etc", "sums/0/../1", "sums", "", ".", "sums/0\x00"]
)
def test_a_run_is_named_not_given_by_a_path(board_root: Path, name: str) -> None:
    from shuhari.desk.board.catalogue import Catalogue
    from shuhari.store import NoRunError

    with pytest.raises(NoRunError, match="no run"):
        Catalogue(board_root).find(name)
    assert Catalogue(board_root).find("sums/0") == board_root / "sums/0"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6060", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_name_that_was_made_to_point_here_is_not_answered(client: TestClient, host: str) -> None:
    for path in ("/", "/api/runs", "/static/main.js"):
        reply = client.get(path, headers={"host": host})
        assert reply.status_code == 403 and "Host" in reply.json()["error"]["message"]


def test_a_page_of_elsewhere_is_not_answered(client: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert client.get("/api/runs", headers={"origin": origin}).status_code == 403
        assert client.post("/api/delete", json={}, headers={"origin": origin, **KEY}).status_code == 403
    assert client.get("/api/runs", headers={"origin": LOCAL}).status_code == 200


def test_2100_sockets_that_ask_nothing_keep_nobody_out(board_root: Path) -> None:
    with served(make_app(board_root, TOKEN), TOKEN) as port, flooded(port):
        assert get(port, "/").status_code == 200 and get(port, "/api/runs", TOKEN).status_code == 200


def test_a_change_needs_the_token_and_json(client: TestClient) -> None:
    assert client.post("/api/delete", json={}).status_code == 401
    assert client.post("/api/delete", json={}, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert client.post("/api/nosuch", json={}, headers=KEY).status_code == 404
    form = client.post("/api/tag", data={"run": "sums/0"}, headers=KEY)
    assert form.status_code == 415 and "application/json" in form.json()["error"]["message"]


def test_beyond_loopback_every_question_needs_the_token(far: TestClient) -> None:
    assert far.get("/").status_code == 200 and far.get("/static/main.js").status_code == 200
    reply = far.get("/api/runs")
    assert reply.status_code == 401 and TOKEN not in reply.text
    assert far.get("/api/runs", headers=KEY).status_code == 200


def test_beyond_loopback_the_board_answers_its_own_page(far: TestClient) -> None:
    own = "http://board.example:6060"
    for origin in (own, "https://board.example:6060", own.upper()):  # a proxy with TLS may stand before it
        assert far.get("/api/runs", headers={"origin": origin, **KEY}).status_code == 200
        reply = far.post("/api/nosuch", json={}, headers={"origin": origin, **KEY})
        assert reply.status_code == 404, "a browser sends Origin with each POST, of its own page too"
    for origin in ("http://board.example", "http://board.example:80", "http://127.0.0.1:6060", "null", "http://[bad"):
        assert far.post("/api/nosuch", json={}, headers={"origin": origin, **KEY}).status_code == 403
    assert far.post("/api/nosuch", json={}, headers={"origin": "null", "host": "", **KEY}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_page_of_elsewhere_embeds_is_refused(client: TestClient, site: str) -> None:
    image = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path in ("/api/runs", "/api/samples?run=sums/0", "/", "/static/main.js", "/metrics"):
        assert client.get(path, headers={**KEY, **image}).status_code == 403
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    assert client.get("/api/runs", headers=link).status_code == 403
    for own in ("same-origin", "none"):
        assert client.get("/api/runs", headers={**image, "sec-fetch-site": own}).status_code == 200


@pytest.mark.parametrize("name", ["samples", "played", "policy"])
def test_to_load_a_model_needs_the_token(client: TestClient, name: str) -> None:
    for path in (f"/api/{name}?run=sums/0", f"/api/%{ord(name[0]):x}{name[1:]}?run=sums/0", f"/api/{name}/?run=sums/0"):
        assert client.get(path).status_code == 401, path
        assert client.head(path).status_code == 401, path
    assert client.get(f"/api/{name}?run=nosuch", headers=KEY).status_code == 404


def test_a_query_of_many_names_is_refused_at_once(client: TestClient) -> None:
    began = time.perf_counter()
    reply = client.get("/api/runs?" + "&".join(f"{i:x}" for i in range(12_000)))
    assert reply.status_code == 400 and "more than 1100 fields" in reply.json()["error"]["message"]
    assert time.perf_counter() - began < 1


def test_as_many_runs_as_a_list_shows_may_be_asked_for(ask: Callable[..., Any]) -> None:
    names = ["sums/0", "sums/1"] * 500
    assert ask("grouped?" + "&".join(f"run={name}" for name in names))


def test_the_address_that_is_printed_holds_a_token_of_its_own_and_no_key(
    board_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shuhari.desk.board import results
    from shuhari.desk.cli import main
    from shuhari.desk.serving import running

    monkeypatch.setattr(results, "preload", lambda: None)
    served: list[Any] = []

    def serve(app: Any, at: Any, ready: Callable[[], None], grace: int, key: str) -> None:
        at.close()
        ready()
        served.append(app)

    monkeypatch.setattr(running, "serve", serve)
    key = "a+key/of=base64&more%2B=="
    monkeypatch.setenv("BOARD_TOKEN", key)
    for by_key, require in ((False, False), (True, False), (True, True)):
        options = [*["--key-env", "BOARD_TOKEN"] * by_key, *["--require-token"] * require]
        with pytest.raises(SystemExit) as end:
            main(["board", "--root", str(board_root), "--port", "0", *options])
        assert end.value.code in (0, None)
        printed = "".join(capsys.readouterr())
        assert key not in printed and quote(key, safe="") not in printed and "a+key" not in printed
        if by_key:
            assert "BOARD_TOKEN" in printed
        token = key if by_key else printed.split("#token=")[1].split()[0]
        asked = TestClient(served.pop(), base_url="https://board.example" if require else LOCAL)
        assert asked.get("/").status_code == 200
        assert asked.get("/api/runs").status_code == (401 if require else 200)
        bearer = {"authorization": f"Bearer {token}"}
        assert asked.post("/api/nosuch", json={}, headers=bearer).status_code == 404
        assert asked.get("/api/runs", headers=bearer).status_code == 200


def test_a_query_is_checked(ask: Callable[..., Any]) -> None:
    assert "did you mean 'limit'" in ask("runs?limitt=1", 400)["error"]["message"]
    assert "limit is 'x'" in ask("runs?limit=x", 400)["error"]["message"]
    assert "limit" in ask("runs?limit=100000", 400)["error"]["message"]
    assert "did you mean 'runs'" in ask("rums", 404)["error"]["message"]


def test_a_damaged_run_is_listed_beside_good_ones(ask: Callable[..., Any]) -> None:
    found = {r["name"]: r for r in ask("runs?wait=true")["runs"]}
    assert set(found) == {"sums/0", "sums/1", "hostile", "damaged"}
    assert found["damaged"]["status"] == "unreadable" and found["damaged"]["note"]
    assert found["sums/0"]["status"] == "complete" and found["sums/0"]["step"] == 4


def test_a_damaged_run_names_what_says_more_of_it(ask: Callable[..., Any], board_root: Path) -> None:
    doctor = f"`shuhari doctor {board_root / 'damaged'}`"
    (listed,) = [r for r in ask("runs?wait=true")["runs"] if r["name"] == "damaged"]
    assert doctor in listed["note"]
    for address in ("run?run=damaged", "rollouts?run=damaged", "curves?run=damaged"):
        assert doctor in ask(address, 422)["error"]["message"]
    assert "doctor" not in json.dumps(ask("runs?words=sums")) + json.dumps(ask("group?run=sums/0&id=99999", 422))


def test_what_fails_is_told_without_its_insides(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from shuhari.desk.board import app

    def broken(runs: object) -> None:
        raise ValueError("/secret/path and a token")

    monkeypatch.setattr(app, "VIEWS", {"broken": broken})
    reply = TestClient(client.app, base_url=LOCAL, raise_server_exceptions=False).get("/api/broken")
    assert reply.status_code == 500 and "secret" not in reply.text and "ValueError" in reply.text


def test_numbers_that_json_has_not_are_null_and_text_is_ascii() -> None:
    from shuhari.desk.plain import to_json

    assert json.loads(to_json({"a": [float("nan"), float("inf"), 1.5], "b": "\ud800\u202e<"})) == {
        "a": [None, None, 1.5], "b": "\ud800\u202e<"}  # fmt: skip
    assert to_json("\u2028é").isascii()


def test_runs_that_are_links_out_of_the_root_are_told(board_root: Path, tmp_path: Path) -> None:
    told = list_runs(Catalogue(board_root), wait=True)["left_out"]
    assert told.startswith("1 run is a link that leads out of") and "--root" in told
    (tmp_path / "one").symlink_to(board_root / "sums" / "0")
    (tmp_path / "two").symlink_to(board_root / "sums" / "1")
    found = list_runs(Catalogue(tmp_path), wait=True)
    assert found["total"] == 0 and found["left_out"].startswith("2 runs are links that lead out of")
    assert not list_runs(Catalogue(board_root / "sums"), wait=True)["left_out"]
