"""`data`: what it says of a file, with and without a model, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shuhari.desk.cli import data
from shuhari.desk.data import COUNTED, report
from shuhari.models.text.causal import Causal
from shuhari.tasks.file import File

from .conftest import Done

Call = Callable[..., Done]
SUMS = [{"question": f"{i}+1=", "answer": f"{i + 1}", "completion": f"{i + 1}", "level": i} for i in range(10, 30)]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_it_says_how_a_file_is_read(shuhari: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    splits = ["train", "train", "validation", "odd"] * 5
    write(Path("sums.jsonl"), [{**row, "split": s} for row, s in zip(SUMS, splits, strict=True)])
    done = shuhari("data", "sums.jsonl", "-n", 1)
    assert done.code == 0 and "sums.jsonl: 20 rows" in done.out
    words = " ".join(done.out.split())
    for told in ("question 20 the prompt", "answer 20 the answer", "level 20 a column for rewards",
                 "train 10 trained on", "validation 5 held out", "odd 5 no recipe asks for it", "prompt 5 5 5 5 line 1",
                 "--- line 1, train prompt: 10+1= answer: 11 demonstration: 11"):  # fmt: skip
        assert told in words, told
    assert "reads `question` as the prompt, `answer` as the answer and `completion` as the demonstration" in done.err
    assert "nothing here reads its split 'odd' (5 rows)" in done.err
    found = json.loads(shuhari("data", "file/sums.jsonl", "--json").out)
    assert found["splits"]["odd"] == {"rows": 5, "for": "no recipe asks for it"}
    assert found["lengths"]["characters"]["answer"]["longest"] == 2
    assert [row["prompt"] for row in found["first"]] == ["10+1=", "11+1=", "12+1="]


def test_prompts_that_have_the_answer_among_other_numbers_are_named(
    shuhari: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("least.jsonl"), [{"prompt": f"Which is smaller, {i} or {i + 1}?", "answer": str(i)} for i in range(9)])
    write(Path("next.jsonl"), [{"prompt": f"What follows {i}?", "answer": str(i + 1)} for i in range(9)])
    assert "in 9 of 9 rows the prompt has the answer among other numbers" in shuhari("data", "least.jsonl").err
    assert "among other numbers" not in shuhari("data", "next.jsonl").err


def test_with_a_run_it_counts_and_shows_tokens(shuhari: Call, home: Path) -> None:
    write(home / "sums.jsonl", SUMS)
    done = shuhari("data", "sums.jsonl", "--model", "s0", "-n", 1)
    assert done.code == 0, done.err
    assert "all rows fit into" in done.out
    assert "--- line 1, as the model is asked: 5 tokens\n10+1=\nids: " in done.out
    assert "--- line 1, as it is trained: 8 tokens, 3 of them trained on\n10+1=[[11<end>]]\nids: " in done.out
    found = json.loads(shuhari("data", "sums.jsonl", "--model", "s0", "--row", 3, "--json").out)
    assert found["row"]["prompt"] == "12+1=" and found["shown"]["place"] == "line 3"
    last = found["shown"]["trained"][-1]
    assert last["text"] == "<end>" and last["special"] and last["trained"]
    assert [t["trained"] for t in found["shown"]["trained"]] == [False] * 5 + [True] * 3


def test_what_a_model_cannot_read_is_named(shuhari: Call, home: Path) -> None:
    model = Causal(hidden=16, layers=1, heads=2, context=9)
    rows = [*SUMS, {"question": "1+" * 9, "completion": "2", "answer": "2"}]
    model.build(File(str(write(home / "sums.jsonl", rows))))
    model.save(home / "small")
    done = shuhari("data", "sums.jsonl", "--model", "small")
    assert done.code == 0, done.err
    assert "1 of 21 rows is longer than the 9 tokens that the model reads (longest 20: line 21)" in done.out


def test_pairs_are_shown_side_by_side(shuhari: Call, home: Path) -> None:
    write(home / "pairs.jsonl", [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}])
    out = shuhari("data", "pairs.jsonl", "--model", "s0").out
    assert "as the chosen answer is trained: 6 tokens, 2 of them trained on\n1+1=[[2<end>]]" in out
    assert "as the rejected answer is trained: 6 tokens, 2 of them trained on\n1+1=[[3<end>]]" in out


def test_a_terminal_gets_colours(shuhari: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "sums.jsonl", SUMS)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = shuhari("data", "sums.jsonl", "--model", "s0", "--row", 1).out
    assert "\x1b[1;32m11\x1b[0m" in out or "\x1b[1;32m1\x1b[0m\x1b[1;32m1\x1b[0m" in out, repr(out)
    assert "\x1b[2m" in out and "[[" not in out


def test_a_hostile_text_is_spelled_out(shuhari: Call, tmp_path: Path) -> None:
    odd = "\x1b[2A\x1b]0;evil\x07\u202e"
    row = {"messages": [{"role": "user", "content": odd}, {"role": "assistant", "content": odd}], odd: odd, "id": odd}
    path = write(tmp_path / "odd.jsonl", [{**row, "split": odd}])
    for more in ((), ("--json",), ("--row", 1)):
        done = shuhari("data", path, *more)
        assert done.code == 0, done.err
        assert not {"\x1b", "\x07", "\u202e"} & set(done.out + done.err)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["nosuch.jsonl"], "no such file"),
        (["walks.hdf5"], "trained on by --set buffer.data.use=file --set buffer.data.path=walks.hdf5"),
        (["sums.jsonl", "--row", "99"], "--row: there is no row 99; the nearest is 20"),
        (["sums.jsonl", "--row", "1", "--split", "dev"], "there is no row 1 of the split 'dev'"),
        (["sums.jsonl", "--model", "nosuch"], "--model: nosuch: no run 'nosuch'"),
        (["sums.jsonl", "--set", "colums.prompt=x"], "did you mean 'columns'"),
        (["sums.jsonl", "--row", "1", "-n", "3"], "-n: it is not read with --row"),
        (["sums.jsonl", "--split", "test"], "--split: of --row, which is not given"),
    ],
)
def test_mistakes_exit_with_2(
    shuhari: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("sums.jsonl"), SUMS)
    done = shuhari("data", *argv)
    assert done.code == 2 and told in done.err, done.err


def test_settings_may_be_named_as_errors_name_them(shuhari: Call, tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", [{"question": "q", "problem": "p", "answer": "a"}])
    assert shuhari("data", path).code == 2
    assert "prompt: p" in shuhari("data", path, "--set", "task.columns.prompt=problem").out


def test_of_many_rows_the_tokens_of_some_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}", "answer": "1"} for i in range(2 * COUNTED + 1)]
    task = File(str(write(tmp_path / "many.jsonl", rows)))
    model = Causal(hidden=16, layers=1, heads=2)
    model.build(task)
    found = report(task, 1, model)
    assert found["lengths"]["tokens"]["prompt"]["rows"] == 667 and found["rows"] == 2001


def test_the_marks_of_what_is_trained() -> None:
    tokens = [{"text": t, "trained": m} for t, m in (("a", False), ("b", True), ("c", True), ("d", False), ("e", True))]
    assert data._mark(tokens) == "a[[bc]]d[[e]]"
