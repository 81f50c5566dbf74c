"""The board in a browser: every page, what a model wrote, a run that goes on, keys alone, contrast. No console error.

It drives the Chromium that the machine has (Debian: `apt install chromium`), and is skipped where there is none.
"""

from __future__ import annotations

import io
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from board_runs import MARKUP, TOKEN, WALK

from shuhari.desk.board.app import make_app
from shuhari.store import Run

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"), pytest.mark.timeout(400)]
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
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=15_000)
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
    made.on("response", lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None)
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


PAGES = (
    "runs",
    "run?run=sums/0",
    "rollouts?run=sums/0",
    "rollouts?run=sums/0&group=1",
    "rollouts?run=sums/0&group=1&other=sums/1",
    "replay?run=sums/0&step=2",
    "curriculum?run=sums/0",
    "compare?arm=sums/0&arm=sums/1",
    "claims",
    "claim?method=rlvr/kl_cov",
    "analyses",
    "beds",
    "beds?bed=beds/masked/many",
)
# text whose contrast to what lies behind it is below that of WCAG 2.1, 1.4.3: 4.5, of large text 3
FAINT = r"""() => {
  const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const solid = (c) => c.startsWith("rgb") && !(parse(c)[3] < 0.99);
  const linear = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(parse(c)[i] / 255), 0);
  const behind = (e) => !e ? "rgb(255, 255, 255)"
    : solid(getComputedStyle(e).backgroundColor) ? getComputedStyle(e).backgroundColor : behind(e.parentElement);
  const faint = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg, .chart, option, [aria-hidden=true], :disabled") || !e.checkVisibility()) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e), size = parseFloat(style.fontSize), a = light(style.color), b = light(behind(e));
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text = e.textContent.trim().slice(0, 40);
    if (style.color.startsWith("rgb") && ratio < (large ? 3 : 4.5)) faint.push(`${text}: ${ratio.toFixed(2)}`);
  }
  return faint;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_opens_and_can_be_read(visit: Callable[[str], Any], theme: str) -> None:
    page = visit("runs")
    page.evaluate("theme => localStorage.setItem('shuhari-theme', theme)", theme)
    for where in PAGES:
        page = visit(where)
        page.locator("h1").first.wait_for()
        assert not page.locator("#message.wrong").is_visible(), page.locator("#message").inner_text()
        assert page.evaluate(FAINT) == [], where
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{where} is {wide} pixels too wide"


def test_the_list_of_runs(visit: Callable[[str], Any]) -> None:
    from playwright.sync_api import expect

    page = visit("runs")
    page.get_by_role("link", name="sums/0").wait_for()
    assert page.locator("tbody tr").count() == 4
    page.get_by_role("searchbox").fill("hostile")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "words=hostile" in page.url and TOKEN not in page.url


def test_an_answer_that_comes_late_is_not_shown(visit: Callable[[str], Any]) -> None:
    from playwright.sync_api import expect

    page, late = visit("runs"), list[Any]()
    page.route("**/api/runs?words=s&*", lambda route: late.append(route))
    page.get_by_role("searchbox").fill("s")
    page.wait_for_timeout(100)
    page.get_by_role("searchbox").fill("hostile")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert late
    with page.expect_response("**/api/runs?words=s&*"):
        late[0].continue_()
    page.wait_for_timeout(300)
    assert page.locator("tbody tr").count() == 1


def test_a_chart_offers_to_send_itself_to_nobody(visit: Callable[[str], Any]) -> None:
    page = visit("run?run=sums/0")
    page.locator(".modebar-btn").first.wait_for(state="attached")
    titles = {*page.locator(".modebar-btn").evaluate_all("all => all.map(e => e.dataset.title ?? e.textContent)")}
    assert titles and not [t for t in titles if "loud" in t or "hare" in t], titles


def test_what_a_model_wrote_stays_text(visit: Callable[[str], Any]) -> None:
    page = visit("rollouts?run=hostile")
    page.locator("tbody a").first.click()
    page.get_by_text("onerror").first.wait_for()
    assert "\x1b" not in page.locator("main").inner_text() and "<script>" in MARKUP
    page = visit("run?run=hostile")
    page.get_by_text("onerror").first.wait_for()
    assert page.title() != "taken" and page.locator("main img[src=x]").count() == 0


def test_an_answer_with_a_negative_advantage_is_three_clicks_away(page: Any, board_root: Path, tmp_path: Path) -> None:
    from shuhari.desk.api import train

    def small(completions: list[str], **_: object) -> list[float]:
        return [float(text[:1] < "5") for text in completions]

    train(board_root.parent / "sums.toml", tmp_path / "runs" / "mixed", reward=small)
    with serve(tmp_path / "runs") as address:
        page.goto(address)
        page.get_by_role("link", name="mixed").first.click()
        page.get_by_role("link", name="Rollouts").first.click()
        page.locator("tbody a").first.click()
        page.locator(".tokens .minus").first.wait_for()
        page.get_by_text("More colours: entropy, ratio, KL").click()
        page.get_by_text("transform.entropy_shaping.alpha=0").wait_for()
        page.goto(f"{address}/#/rollouts?run=mixed")
        page.get_by_label("Rewards differ").wait_for()
        some = page.locator("tbody tr").count()
        assert page.get_by_label("Rewards differ").is_checked()
        page.get_by_role("button", name="Show all groups").click()
        page.get_by_text("all alike").first.wait_for()
        assert page.locator("tbody tr").count() > some


def test_a_policy_is_played_and_no_more_is_offered_than_it_can_do(page: Any, board_root: Path, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    from shuhari.desk.api import train

    (tmp_path / "walk.toml").write_text(WALK)
    train(tmp_path / "walk.toml", tmp_path / "runs" / "walk")
    shutil.copytree(board_root / "sums" / "0", tmp_path / "runs" / "sums")
    with serve(tmp_path / "runs") as address:
        page.goto(f"{address}/#token={TOKEN}")
        page.wait_for_selector(READY)
        page.goto(f"{address}/#/rollouts?run=walk")
        page.locator(".media summary").click()
        page.get_by_role("button", name="Play an episode").click()
        film = page.get_by_role("img", name="the environment at this moment")
        film.wait_for(timeout=60_000)
        assert film.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        slider = page.get_by_label("moment", exact=True)
        end = slider.get_attribute("max")
        page.get_by_role("button", name="Play", exact=True).click()
        expect(slider).to_have_value(end)
        expect(page.locator(".slide output")).to_have_text(f"step {end} of {end}")
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()  # it has stopped
        page.get_by_role("button", name="Policy as a table").click()
        page.get_by_role("table", name="policy on the grid").wait_for()
        page.goto(f"{address}/#/rollouts?run=sums")
        page.locator(".media summary").click()
        page.get_by_text("token by token").wait_for()
        assert page.locator(".media button").count() == 0


def test_groups_come_into_an_open_list_while_a_run_trains(page: Any, board_root: Path, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    from shuhari.store import Store

    made = board_root / "sums" / "0"
    groups = Run(made).rollouts(1)
    with Store.open(tmp_path / "new") as store, serve(tmp_path) as address:
        store.write_text("recipe.toml", (made / "recipe.toml").read_text())
        page.goto(f"{address}/#/run?run=new")  # before its first step
        page.wait_for_selector(READY)
        page.goto(f"{address}/#/rollouts?run=new")
        expect(page.locator("main")).to_contain_text("No group is kept yet")
        store.commit(1, metrics={}, rollouts=groups[:1], tree={})
        expect(page.locator("tbody tr")).to_have_count(1)
        page.locator("tbody tr").focus()
        store.commit(2, metrics={}, rollouts=groups[:1], tree={})
        expect(page.locator("tbody tr")).to_have_count(2)
        assert page.evaluate("document.activeElement.dataset.row") == "1"  # it stays under the hands of its reader


def test_curves_of_two_sets_of_runs_are_drawn(visit: Callable[[str], Any]) -> None:
    from playwright.sync_api import expect

    page = visit("compare?arm=sums/0&arm=sums/1&metric=reward/mean")
    lines = page.get_by_role("img", name="reward/mean of the").locator(".scatterlayer .trace")
    expect(lines).to_have_count(2)
    page.get_by_label("Metric").select_option("evaluate/greedy")
    expect(page.get_by_role("img", name="evaluate/greedy of the").locator(".scatterlayer .trace")).to_have_count(2)
    page.locator("label", has_text=re.compile("^Over")).get_by_role("combobox").select_option("wall")
    expect(page.locator(".xtitle").first).to_contain_text("wall")


def test_an_outlier_leaves_the_colours_of_others(visit: Callable[[str], Any]) -> None:
    shares = visit("runs").evaluate("""async () => {
      const tokens = await import("/static/parts/tokens.js");
      const [root, box] = ["div", "div"].map((tag) => document.createElement(tag));
      box.className = "tokens";
      box.step = { numbers: { advantage: [0, 0.1, -0.2, 1000] } };
      box.append(...box.step.numbers.advantage.map(() => document.createElement("span")));
      root.append(box);
      tokens.colour(root, "advantage", { advantage: { low: -0.2, high: 1000, signed: true, origin: 0, middle: 0.2 } });
      return [...box.children].map((e) => [e.className, parseInt(e.style.getPropertyValue("--a")) || 0]);
    }""")
    assert [way for way, _ in shares] == ["", "plus", "minus", "plus"]
    assert shares[0][1] == 0 and 10 < shares[1][1] < shares[2][1] < shares[3][1] == 60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_that_goes_on_beyond_its_edge_shows_it(visit: Callable[[str], Any], theme: str) -> None:
    from PIL import Image, ImageStat

    page = visit("rollouts?run=sums/0")
    page.evaluate("theme => localStorage.setItem('shuhari-theme', theme)", theme)
    page.set_viewport_size({"width": 480, "height": 900})
    page = visit("rollouts?run=sums/0")
    box = page.locator(".scroll").first.bounding_box()
    edges = {"left": box["x"] + 1, "right": box["x"] + box["width"] - 4}

    def is_shaded(edge: str) -> bool:
        head = {"x": edges[edge], "y": box["y"] + 3, "width": 3, "height": 3}  # above the words of the first row
        ground = {"x": 2, "y": box["y"], "width": 3, "height": 3}
        edge_, ground_ = (ImageStat.Stat(Image.open(io.BytesIO(page.screenshot(clip=at))).convert("L")).mean[0]
                          for at in (head, ground))  # fmt: skip
        return abs(edge_ - ground_) > 8

    assert (is_shaded("left"), is_shaded("right")) == (False, True)
    page.locator(".scroll").first.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    assert (is_shaded("left"), is_shaded("right")) == (True, False)


def test_keys_alone_lead_through_the_board(visit: Callable[[str], Any]) -> None:
    from playwright.sync_api import expect

    page = visit("runs")
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("sums/")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).to_have_value("sums/")  # as the list is
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("sums/")
    page.get_by_role("link", name="Rollouts").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Rollouts")
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator(".tokens").first.wait_for()
    page.locator(".tokens span").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tooltip")).to_contain_text("token 2 of")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("g")
    page.keyboard.press("b")
    expect(page.locator("h1")).to_have_text("Beds")


def test_a_run_is_seen_as_it_goes_on(
    page: Any, board_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.sync_api import expect

    from shuhari.desk.api import train

    goes = threading.Event()

    def wait(report: Any) -> None:
        if report["step"] == 2:
            goes.wait(60)

    work = threading.Thread(
        target=train, args=(board_root.parent / "sums.toml", tmp_path / "live"), kwargs={"observe": wait}, daemon=True
    )
    work.start()
    while not (tmp_path / "live" / "run.sqlite").exists():
        time.sleep(0.05)
    with serve(tmp_path) as address:
        page.goto(f"{address}/#token={TOKEN}")
        page.goto("about:blank")
        page.goto(f"{address}/#/run?run=live")
        expect(page.locator("main")).to_contain_text("running")
        expect(page.locator("main")).not_to_contain_text("4 of 4")
        goes.set()
        expect(page.locator("main")).to_contain_text("4 of 4")
        expect(page.locator("main")).to_contain_text("complete")
    work.join(60)


def test_a_run_is_deleted_after_a_question(page: Any, board_root: Path, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    shutil.copytree(board_root / "sums" / "0", tmp_path / "one")
    with serve(tmp_path) as address:
        page.goto(address)  # without the token
        page.locator("tbody input[type=checkbox]").first.check()
        expect(page.get_by_role("button", name="Delete")).to_be_disabled()
        page.goto(f"{address}/#token={TOKEN}")  # the same page goes on
        for answer in ("Cancel", "Delete"):
            page.locator("tbody input[type=checkbox]").first.check()
            page.get_by_role("button", name="Delete").first.click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("one")
            assert (tmp_path / "one").exists()
            dialog.get_by_role("button", name=answer).click()
        expect(page.locator("#message")).to_have_text("Deleted: one")
        expect(page.locator("tbody tr")).to_have_count(0)
        expect(page.locator("main")).to_contain_text("no run in")
    assert not (tmp_path / "one").exists()


def test_a_board_that_has_ended_is_told_in_words(browser: Any, board_root: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    with serve(board_root) as where:
        page.goto(f"{where}/#token={TOKEN}")
        page.get_by_role("link", name="sums/0").wait_for()
    page.locator("#message.wrong").wait_for()
    assert "The board does not answer: was it stopped?" in page.locator("#message").inner_text()
    page.get_by_role("link", name="Beds").click()
    page.get_by_text("This page could not be shown.").wait_for()
    assert "Failed to fetch" not in page.locator("#message").inner_text()
    context.close()


def test_names_of_200_letters_widen_no_page(browser: Any, board_root: Path, tmp_path: Path) -> None:
    name = "n" * 200
    shutil.copytree(board_root / "sums" / "0", tmp_path / name)
    (tmp_path / name / "tags.json").write_text(f'["{"t" * 60}"]')
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    with serve(tmp_path) as where:
        pages = (f"{of}?run={name}" for of in ("run", "rollouts", "curriculum", "replay"))
        for address in ("runs", *pages, f"compare?arm={name}"):
            page.goto("about:blank")
            page.goto(f"{where}/#/{address}")
            page.wait_for_selector(READY)
            page.locator("h1").first.wait_for()
            page.wait_for_timeout(200)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{address} is {wide} pixels too wide"
        page.goto(f"{where}/#/runs")
        page.locator("td.named").wait_for()
        assert page.locator("td.named").bounding_box()["width"] < 700
    context.close()
