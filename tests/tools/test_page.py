"""A run in a notebook: HTML that is well formed, has the numbers and the picture, and in which no text is code."""

from __future__ import annotations

import json
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shuhari
from shuhari.desk.page import make_page, make_table, spell
from shuhari.store import Store

EMPTY_TAGS = {"img"}


class Parsed(HTMLParser):
    """Tags with their attributes, the text, and the rows of tables; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


HOSTILE = "$x^ <script>alert(1)</script> & \"><img src=x onerror='x'>\x1b[2J"


def write_run(path: Path, text: str) -> Path:
    """A complete run of two steps whose names, messages and sample are `text`."""
    from shuhari.data import Problem, Request, Step, Trajectory

    step = Step.of("context", "action", info={"text": text})
    episode = Trajectory(Request(Problem("sums", text, text)), (step,))
    group = {"group": "g", "task": "sums", "problem": text, "why": "best", "score": 1.0, "trajectories": (episode,)}
    with Store.open(path) as store:
        store.write_text("recipe.toml", f"name = {json.dumps(text)}\nseed = 3\nsteps = 2\n")
        for i in (1, 2):
            store.commit(
                i,
                stage="main",
                wall=60.0 * i,
                metrics={"reward/mean": i / 4},
                rollouts=[group],
                events=[("problem", text)],
            )
        ends = {"chance": {"greedy": 0.125}, "before": {"greedy": 0.25}, "after": {"greedy": 0.75}}
        store.write_text("summary.json", json.dumps(ends))
        store.set(complete=True)
    return path


def test_a_run_has_its_scores_its_time_and_its_picture(tmp_path: Path) -> None:
    page = Parsed(make_page(write_run(tmp_path / "a", "plain")))
    heads, greedy = (row for row in page.rows if len(row) == 5)
    assert heads == ["held-out", "chance", "before", "after", "change"]
    assert greedy == ["greedy", "0.125", "0.25", "0.75", "+0.5"]
    facts = dict(row for row in page.rows if len(row) == 2)
    assert {
        "seed": "3",
        "status": "complete",
        "steps": "2",
        "time": "120 s",
        "a sample": "plain",
    }.items() <= facts.items()
    (picture,) = [attributes for tag, attributes in page.tags if tag == "img"]
    kind, _, data = str(picture["src"]).partition(",")
    assert kind == "data:image/png;base64" and b64decode(data).startswith(b"\x89PNG")


def test_text_of_a_model_is_text(tmp_path: Path) -> None:
    page = Parsed(make_page(write_run(tmp_path / "a", HOSTILE)))
    assert {tag for tag, _ in page.tags} <= {"div", "table", "thead", "tbody", "tr", "th", "td", "p", "ul", "li", "img"}
    assert sum(tag == "img" for tag, _ in page.tags) == 1
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    assert "<script>alert(1)</script>" in page.text and "\x1b" not in page.text


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as store:
        store.write_text("recipe.toml", 'name = "x"\n')
    page = Parsed(make_page(tmp_path / "a"))
    assert ["steps", "0"] in page.rows and not [tag for tag, _ in page.tags if tag == "img"]


def test_cells() -> None:
    assert make_table(("a",), [("<b>", None, 1 / 3)]) == (
        "<table><thead><tr><th>a</th></tr></thead><tbody><tr><th>&lt;b&gt;</th><td></td><td>0.3333</td></tr></tbody></table>"
    )
    assert spell("x" * 400) == "x" * 300 + "…"


def test_what_train_and_load_return_show_themselves(tmp_path: Path) -> None:
    from shuhari.desk.api import LoadedPolicy, read_trained

    run = read_trained(write_run(tmp_path / "a", "plain"))
    assert run._repr_html_() == make_page(tmp_path / "a")
    torch = pytest.importorskip("torch")
    model = SimpleNamespace(module=torch.nn.Linear(30, 40))
    page = Parsed(LoadedPolicy(model, shuhari.Sampling(), "Box(<4>)")._repr_html_())
    assert page.rows == [["model", "SimpleNamespace"], ["weights", "1,240"], ["observations", "Box(<4>)"]]
