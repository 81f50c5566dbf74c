"""Claims and beds on the board, beside what the terminal prints of the same results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from board_runs import MARKUP

from shuhari.desk.board import results
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.claims import list_claimed
from shuhari.lab.claims import board
from shuhari.lab.claims.cards import find
from shuhari.lab.claims.kept_results import find_results, read_result
from shuhari.lab.claims.wording import describe_verdict, find_decisive
from shuhari.store import Store

Ask = Callable[..., Any]
PACS = "rlvr/pacs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without results of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_result(at: Path, name: str, **changes: Any) -> Path:
    """Another result of a method below `at`/results."""
    found = {**(read_result(name) or {}), **changes}
    path = at / "results" / "claims" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    return path


def test_the_scoreboard_says_what_the_results_say(ask: Ask) -> None:
    found = ask("claims?wait=true")
    kept = {row["method"]: read_result(row["method"]) for row in found["claims"]}
    assert len(kept) == found["total"] == sum(found["verdicts"].values()) == sum(found["families"].values())
    for row in found["claims"]:
        result = kept[row["method"]]
        if result is None:
            assert row["verdict"] == "not measured" and row["effect"] is None
            continue
        head = result["headline"]
        assert row["words"] == describe_verdict(result, now=True) and row["from"] == "shuhari"
        if head.get("effect") is None or not head["margin"]:  # not tested, or no margin to tell it in
            assert row["effect"] is None
        else:
            rivals = {rival["name"]: rival for rival in result.get("rivals", ())}
            decisive = rivals.get(find_decisive(result), head)
            assert row["effect"] == pytest.approx(decisive["effect"] / head["margin"])
        assert row["year"] == result["paper"].get("year")
    assert found["chance"] == board.false_holds([r for r in kept.values() if r])


def test_a_run_leads_to_the_claims_of_its_methods(tmp_path: Path) -> None:
    laid = {"rlvr/kl_cov+mopps": ["rlvr/kl_cov", "curriculum/mopps"], PACS: [], "../x/no": ["/y", "../z"]}
    for name, methods in laid.items():
        with Store.open(tmp_path / name[-2:]) as store:
            tables = "".join(f'[laid."{one}"]\n' for one in methods)
            store.write_text("recipe.toml", f'name = "{name}"\nsteps = 1\n{tables}')
    runs = Catalogue(tmp_path)
    found = {row["method"]: row["words"] for row in list_claimed(runs, "ps")}
    assert set(found) == {"rlvr/kl_cov", "curriculum/mopps"}
    assert all(words.startswith((read_result(name) or {})["verdict"]) for name, words in found.items())
    assert [row["method"] for row in list_claimed(runs, "cs")] == [PACS] and list_claimed(runs, "no") == []


def test_claims_are_filtered_and_put_in_order(ask: Ask) -> None:
    some = ask("claims?family=rlvr&verdict=holds&words=grpo&order=effect&down=true")["claims"]
    assert some and {(r["family"], r["verdict"]) for r in some} == {("rlvr", "holds")}
    effects = [r["effect"] for r in some if r["effect"] is not None]
    assert effects == sorted(effects, reverse=True)
    every = [r["effect"] for r in ask("claims?order=effect")["claims"]]
    assert None not in every[: len(every) - every.count(None)]
    years = [r["year"] for r in ask("claims?order=year&down=true&limit=5")["claims"]]
    assert years == sorted(years, reverse=True) and len(years) == 5
    assert ask("claims?order=age", 400)["error"]["param"] == "order"


def test_a_claim_has_all_of_its_result(ask: Ask) -> None:
    found, kept = ask(f"claim?method={PACS}&wait=true"), read_result(PACS)
    assert kept is not None and found["paper"]["arxiv"] == kept["paper"]["arxiv"]
    assert found["effect_text"] == board.headline(kept) and found["told"] == [board.ruled(c) for c in kept["checks"]]
    assert [line["date"] for line in found["history"]] == [line["date"] for line in kept["history"]]
    curve = found["curves"]["evaluate/exact.mean"]["method"]
    assert curve["n"] == len(kept["seeds"]) and len(curve["x"]) == 60
    assert all(a <= b <= c for a, b, c in zip(curve["low"], curve["mean"], curve["high"], strict=True))
    assert found["freshness"] and found["protocol"]["hash"] == kept["protocol"]["hash"]
    assert "did you mean" in ask("claim?method=rlvr/pasc", 404)["error"]["message"]


def test_a_result_below_results_stands_first_and_is_read_once(
    ask: Ask, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_result(elsewhere, PACS, verdict="reversed", says=MARKUP)
    found = ask(f"claim?method={PACS}")
    assert (found["verdict"], found["from"], found["says"]) == ("reversed", "results", MARKUP)
    ask("claims")  # whatever ran before
    read: list[str] = []
    keep = results.keep
    monkeypatch.setattr(results, "keep", lambda p, w, f: keep(p, w, lambda: (read.append(str(p)), f())[1]))
    for _ in range(2):
        ask("claims")
    assert not read
    os.utime(path, (1, 1))
    for _ in range(2):
        ask("claims")
    assert len(read) == 1


def test_a_broken_result_is_told_and_hides_no_other(ask: Ask, elsewhere: Path) -> None:
    write_result(elsewhere, PACS).write_text("{")
    found, there = ask("claims"), len(list(find_results().rglob("*.json")))
    assert "pacs.json is not the result" in found["problems"][0] and found["total"] > there // 2
    assert "is not the result" in ask(f"claim?method={PACS}", 422)["error"]["message"]


def test_the_picture_of_effects_is_whole_whatever_a_result_is_called(board_root: Path) -> None:
    from shuhari.desk.board.catalogue import Catalogue
    from shuhari.desk.board.views.claims import draw_effects

    drawn = draw_effects(Catalogue(board_root), family="rlvr")
    words = [e.text for e in ElementTree.fromstring(drawn.data).iter("{http://www.w3.org/2000/svg}text")]
    assert PACS in words and drawn.kind == "image/svg+xml" and "data/redstar" not in words
    text = board.draw([{**(read_result(PACS) or {}), "method": "<script>&"}])
    assert "<script>&" in [e.text for e in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]


def test_beds_say_what_their_cards_say(ask: Ask) -> None:
    rows = {row["bed"]: row for row in ask("beds")["beds"]}
    card = find("beds/trie/twins")
    assert card is not None and rows["beds/trie/twins"]["seeds"] == len(card.table["seeds"])
    ends = [c["y"][-1] for c in card.arms["baseline"]["curves"]["evaluate/exact.mean"]]
    assert rows["beds/trie/twins"]["end"] == pytest.approx(sum(ends) / len(ends))
    assert rows["beds/trie/twins"]["mde"] > 0 and not any("/control/" in name for name in rows)
    there = len(list(find_results().rglob("*.json")))
    assert there >= sum(row["methods"] for row in rows.values()) > there // 3


def test_a_bed_ranks_its_methods_as_the_terminal_does(ask: Ask, elsewhere: Path, capsys: Any) -> None:
    from shuhari.desk.cli.verdicts import show_board

    found = ask("beds?bed=beds/trie/twins4&wait=true")
    show_board("beds/trie/twins4", "", elsewhere / "results", json=True)
    printed = json.loads(capsys.readouterr().out)
    assert [r["method"] for r in found["methods"]] == [r["method"] for r in printed["methods"]]
    assert [r["value"] for r in found["methods"]] == [r["less_baseline"] for r in printed["methods"]]
    assert [r["words"] for r in found["methods"]] == [r["verdict"] for r in printed["methods"]]
    assert found["by"] == printed["by"] and found["metrics"] == printed["metrics"]
    exact = next(n for n in found["numbers"] if n["metric"] == "evaluate/exact.mean")
    assert exact["random"] < exact["start"] < exact["end"] and found["curves"]["control"]["n"] == 24
    other = next(m for m in found["metrics"] if m != found["metric"])
    assert ask(f"beds?bed=beds/trie/twins4&metric={other}:final")["by"] == f"{other}:final"
    assert "did you mean" in ask("beds?bed=beds/trie/twin", 404)["error"]["message"]
    assert ask("beds?bed=beds/trie/twins4&metric=nothing", 400)["error"]["param"] == "metric"
