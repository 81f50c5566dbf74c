"""The board in a browser: every page, what a model wrote, a run that goes on, keys alone, contrast. No console error.

It drives the Chromium that the machine has (Debian: `apt install chromium`), and is skipped where there is none.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from board_runs import TOKEN

from shuhari.tools.board.app import make_app

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
READY = "body[data-ready]:not([data-ready=''])"


@pytest.fixture(scope="module")
def address(board_root: Path) -> Iterator[str]:
    """Of the board of `board_root`, which listens."""
    with serve(board_root) as where:
        yield where


class serve:
    """A board in a thread of this process; its address."""

    def __init__(self, root: Path) -> None:
        import uvicorn

        self.at = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(root, TOKEN), log_level="warning", lifespan="off", ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.at]}, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.at.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; the test fails where its console has an error, or it asks for anything of elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made, wrong = context.new_page(), list[str]()
    made.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    made.on("pageerror", lambda e: wrong.append(str(e)))
    made.on(
        "request",
        lambda r: wrong.append(r.url) if not r.url.startswith(("http://127.0.0.1:", "blob:", "data:")) else None,
    )
    made.set_default_timeout(15_000)
    yield made
    context.close()
    assert not wrong, wrong


@pytest.fixture
def visit(page: Any, address: str) -> Callable[[str], Any]:
    """visit("run?run=sums/0") opens a page, waits until it is there, and gives it."""
    page.goto(f"{address}/#token={TOKEN}")
    page.wait_for_selector(READY)

    def go(where: str) -> Any:
        page.goto("about:blank")
        page.goto(f"{address}/#/{where}")
        page.wait_for_selector(READY)
        return page

    return go


def test_the_list_of_runs(visit: Callable[[str], Any]) -> None:
    from playwright.sync_api import expect

    page = visit("runs")
    page.get_by_role("link", name="sums/0").wait_for()
    assert page.locator("tbody tr").count() == 4
    page.get_by_role("searchbox").fill("hostile")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "words=hostile" in page.url and TOKEN not in page.url
