"""Problems from a file: good rows, bad rows named by their line, splits, and the normalised match."""

from __future__ import annotations

import datetime
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Step
from shuhari.models.text.causal import Causal
from shuhari.tasks.file import File, ends_with, matches
from shuhari.tasks.parquet import read_parquet
from shuhari.tasks.rows import read


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows))
        return str(path)

    return to


def both(task: File) -> dict[str, list[Problem]]:
    return {s: list(task.problems(s).problems) for s in ("train", "test")}


def test_rows_become_problems(write: Any) -> None:
    row = {"prompt": "6*7=", "answer": 42, "solution": "6*7 is 42", "id": "q1", "level": 3, "tags": ["a", {"b": None}]}
    chat = {"prompt": [{"role": "user", "content": "hi"}], "answer": "ho", "split": "train"}
    train = File(write({**row, "split": "train"}, b"\n", b"  \n", chat)).problems("train")
    assert train.size() == 2
    first, second = train[0], train[1]
    assert (first.prompt, first.answer, first.solution, first.id) == ("6*7=", 42, "6*7 is 42", "q1")
    assert first.info == {"level": 3, "tags": ("a", {"b": None})}
    assert second.prompt == ({"role": "user", "content": "hi"},)
    assert second.answer == "ho" and second.solution is None


def test_a_column_that_only_some_rows_have_is_none_in_the_others(write: Any) -> None:
    """As in Parquet: a grader that asks for it is not stopped by a row in the middle of a run."""
    rows = [{"prompt": "a", "chosen": "1", "rejected": "2"}, {"prompt": "b", "answer": "1", "level": 3}]
    rows += [{"prompt": "c", "answer": "2", "hint": "x"}]
    infos = [p.info for p in File(write(*({**r, "split": "train"} for r in rows))).problems("train").problems]
    none = {"level": None, "hint": None}
    assert infos == [{**none, "chosen": "1", "rejected": "2"}, {**none, "level": 3}, {**none, "hint": "x"}]


def test_split_by_content(write: Any) -> None:
    rows = [{"prompt": f"question {i % 300}", "answer": str(i)} for i in range(600)]
    path = write(*rows)
    splits = both(File(path, test_fraction=0.3))
    prompts = {s: {p.prompt for p in problems} for s, problems in splits.items()}
    assert not prompts["train"] & prompts["test"]
    assert len(splits["train"]) + len(splits["test"]) == 600
    assert abs(len(prompts["test"]) / 300 - 0.3) < 4 * (0.21 / 300) ** 0.5
    assert len({p.id for problems in splits.values() for p in problems}) == 600
    shuffled = both(File(write(*rows[::-1], name="reversed.jsonl"), test_fraction=0.3))
    assert {p.prompt for p in shuffled["test"]} == prompts["test"]  # the order of rows moves nothing
    wider = {p.prompt for p in both(File(path, test_fraction=0.6))["test"]}
    assert prompts["test"] < wider


def test_the_split_column_is_honoured(write: Any) -> None:
    rows = [{"prompt": f"p{i}", "answer": "a", "split": ("train", "test", "hard")[i % 3]} for i in range(30)]
    rows.append({"prompt": "p2", "answer": "b"})  # goes where its prompt already is
    task = File(write(*rows))
    splits = both(task)
    assert [p.prompt for p in splits["test"]] == [f"p{i}" for i in range(1, 30, 3)]
    hard = task.problems("hard")
    assert [hard[i].prompt for i in range(11)] == [*(f"p{i}" for i in range(2, 30, 3)), "p2"]
    with pytest.raises(ValueError, match="did you mean 'hard'"):
        task.problems("hart")
    with pytest.raises(ValueError, match=r"line 1 and line 2 have one prompt.*'train' and 'test'"):
        File(write({"prompt": "p", "answer": "a", "split": "train"}, {"prompt": "p", "answer": "a", "split": "test"}))


def test_an_empty_split_says_why(write: Any) -> None:
    task = File(write({"prompt": "p", "answer": "a", "split": "train"}))
    with pytest.raises(ValueError, match=r"none of its 1 rows is in the split 'test' \(test_fraction is 0\.1\)"):
        task.problems("test")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{'prompt': 1}\n", "Expecting property name"),
        (b"[1, 2]\n", "found list"),
        ({"answer": "a"}, "no 'prompt'"),
        ({"prompt": "p", "anwser": "a"}, "no 'answer'; did you mean 'anwser'"),
        ({"prompt": "p", "answer": [1]}, r"\[1\]"),
        ({"prompt": "p", "answer": None}, "no 'answer'"),
        ({"prompt": "p", "answer": True}, "True"),
        ({}, "empty"),
        ({"prompt": 3, "answer": "a"}, "expected text, or messages"),
        ({"prompt": "", "answer": "a"}, "expected text"),
        ({"prompt": [{"role": "user"}], "answer": "a"}, "messages"),
        (b'{"prompt": "p", "answer": NaN}\n', "NaN is not JSON"),
        (b'{"prompt": "\xff", "answer": "a"}\n', "utf-8"),
        (b"[" * 100_000 + b"\n", "line 3"),
        (b'{"prompt"\n', "Expecting"),
        ({"prompt": "p", "answer": "a", "split": 1}, "`split` is 1"),
        ({"prompt": "p", "answer": "a", "solution": 1}, "`solution`"),
    ],
)
def test_a_bad_row_is_named_by_its_line(write: Any, bad: Any, message: str) -> None:
    good = {"prompt": "fine", "answer": "a"}
    with pytest.raises(ValueError, match="line 3: ") as caught:
        File(write(good, b"\n", bad, good))
    assert caught.match(message)


def test_files_that_are_not_there_or_empty(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        File(write())
    with pytest.raises(ValueError, match="no rows"):
        File(write(b"\n \n"))
    with pytest.raises(FileNotFoundError, match=r"did you mean 'rows\.jsonl'"):
        File(str(tmp_path / "row.jsonl"))
    with pytest.raises(ValueError, match="no rows"):
        File(str(tmp_path))
    with pytest.raises(ValueError, match="a path is missing"):
        File()
    with pytest.raises(ValueError, match="line 1 and line 2 have one id, 'x'"):
        File(write({"prompt": "p", "answer": "a", "id": "x"}, {"prompt": "q", "answer": "a", "id": "x"}))


def test_a_byte_order_mark_is_no_content(write: Any) -> None:
    row = json.dumps({"prompt": "p", "answer": "a", "split": "train"}).encode() + b"\n"
    assert File(write(b"\xef\xbb\xbf" + row)).problems("train")[0].prompt == "p"


def test_alphabet(write: Any) -> None:
    rows = [{"prompt": "ab", "answer": 12}, {"prompt": [{"role": "u", "content": "c"}], "answer": "d", "solution": "e"}]
    file = File(write(*rows))
    assert set(file.alphabet) == set("12abcdeu") | set(": \nassistant:")
    reads = Causal(hidden=16, layers=1, heads=2)
    reads.build(file)
    assert reads.decode(reads.encode(file.problems("train")[0].prompt)) in ("ab", "u: c\nassistant:")


# ---------------------------------------------------------------- the forms of a row


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


HI, HO, HA = message("user", "hi"), message("assistant", "ho"), message("assistant", "ha")


@pytest.mark.parametrize(
    ("row", "prompt", "solution", "info"),
    [
        ({"messages": [HI, HO]}, (HI,), "ho", {}),
        ({"messages": [HI, HO, HI, HA], "level": 2}, (HI, HO, HI), "ha", {"level": 2}),
        ({"messages": [HI]}, (HI,), None, {}),
        ({"messages": [HI, HO, HI]}, (HI, HO, HI), None, {}),
        ({"prompt": "p", "completion": "c"}, "p", "c", {}),
        ({"prompt": [HI], "completion": [HO]}, (HI,), "ho", {}),
        ({"prompt": "p", "completion": "c", "solution": 3}, "p", "c", {"solution": 3}),
        ({"prompt": "p", "completion": "c", "label": False}, "p", "c", {"label": False}),
        ({"prompt": "p", "answer": 1, "label": "easy"}, "p", None, {"label": "easy"}),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "p", None, {"chosen": "a", "rejected": "b"}),
        ({"prompt": [HI], "chosen": [HO], "rejected": [HA]}, (HI,), None, {"chosen": "ho", "rejected": "ha"}),
        ({"prompt": [HI], "chosen": [HI, HO], "rejected": [HI, HA]}, (HI,), None, {"chosen": "ho", "rejected": "ha"}),
        ({"chosen": [HI, HO], "rejected": [HI, HA]}, (HI,), None, {"chosen": "ho", "rejected": "ha"}),
        ({"prompt": "hi", "chosen": [HI, HO], "rejected": [HI, HA]}, (HI,), None, {"chosen": "ho", "rejected": "ha"}),
        ({"prompt": "hi", "chosen": [HO], "rejected": [HA]}, "hi", None, {"chosen": "ho", "rejected": "ha"}),
        (
            {"chosen": "The sky is blue.", "rejected": "The sky is green."},  # of TRL's documentation
            "The sky is",
            None,
            {"chosen": " blue.", "rejected": " green."},
        ),
        ({"prompt": "p"}, "p", None, {}),
        ({"prompt": "p", "answers": ["a", "b"]}, "p", None, {"answers": ("a", "b")}),
        ({"prompt": "p", "chosen": None, "answer": None, "solution": "s", "x": None}, "p", "s", {"x": None}),
        ({"prompt": "p", "answer": 10**30}, "p", None, {}),
    ],
)
def test_the_forms_of_a_row(write: Any, row: dict[str, Any], prompt: Any, solution: Any, info: Any) -> None:
    problem = File(write({**row, "split": "train"})).problems("train")[0]
    assert (problem.prompt, problem.solution, dict(problem.info)) == (prompt, solution, info)
    assert problem.answer == row.get("answer")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "messages": [HI]}, "both `prompt` and `messages`"),
        ({"messages": [HO]}, "nothing before the assistant"),
        ({"messages": [HI, HO], "completion": "c"}, "beside `messages`"),
        ({"messages": "hi"}, "`messages` is 'hi'"),
        ({"messages": []}, r"`messages` is \[\]"),
        ({"messages": [{"role": "user", "content": [1]}]}, "expected messages"),
        ({"mesages": [HI]}, "no 'prompt' and no 'messages'; known: mesages"),
        ({"promt": "p", "answer": "a"}, "no 'prompt'.*did you mean 'promt'"),
        ({"prompt": "p", "completoin": "c"}, "no 'completion'; did you mean 'completoin'"),
        ({"prompt": "p", "chosen": "a"}, "no 'rejected'"),
        ({"prompt": "p", "chosen": "a", "rejected": [HO]}, "`chosen` is 'a'"),
        ({"prompt": "p", "chosen": [HI], "rejected": [HO]}, "`chosen` ends with messages of user"),
        (
            {"chosen": [HI, HO, HI, HA], "rejected": [HI, HA]},
            "`chosen` ends with messages of assistant, user, assistant",
        ),
        ({"prompt": [HI], "chosen": [HI, HO], "rejected": [HA, HO]}, "`chosen` ends with messages of user, assistant"),
        ({"chosen": "same", "rejected": "same"}, "are the same"),
        ({"chosen": "a", "rejected": "b"}, "share none"),
        ({"prompt": "p", "completion": "c", "label": 2}, "`label` is 2"),
        ({"prompt": "p", "completion": 1}, "`completion` is 1"),
        (b'{"prompt": "p", "answer": 1e999}\n', "`answer` is inf"),
        (b'{"prompt": "p", "x": [-1e999]}\n', "`x` is -inf"),
        (b'{"prompt": "\\ud800"}\n', "`prompt` is no text of Unicode"),
        (b'{"prompt": "p", "x": "\\ud800"}\n', "`x` is no text of Unicode"),
        (b'{"prompt": "p", "answer": ' + b"9" * 5000 + b"}\n", "limit"),
    ],
)
def test_a_row_of_no_form_is_named(write: Any, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 2: .*{message}"):
        File(write({"prompt": "fine", "completion": "c"}, row))


def test_rows_without_answers_grade_nothing(write: Any) -> None:
    ids = np.ones(2, np.int32)
    problem = (task := File(write({"prompt": "p", "split": "train"}))).problems("train")[0]
    assert task.grade(problem, [Step.of(ids, ids, info={"text": "x"})]) == {}
    with pytest.raises(ValueError, match="line 2: no 'answer', which line 1 has"):
        File(write({"prompt": "p", "answer": 1}, {"prompt": "q", "other": 1}))
    mixed = File(write({"prompt": "p", "answer": 1}, {"prompt": "q", "completion": "c"}))
    assert {p.answer for rows in both_or_one(mixed) for p in rows} == {1, None}


def both_or_one(task: File) -> list[list[Problem]]:
    """The rows of the splits that there are."""
    found = []
    for split in ("train", "test"):
        try:
            found.append(list(task.problems(split).problems))
        except ValueError:
            continue
    return found


def test_one_prompt_with_many_completions(write: Any) -> None:
    """As preference files have it: ids differ, and stay where rows are written in another order."""
    rows = [{"prompt": "p", "completion": c, "label": c == "a", "split": "train"} for c in "abcb"]
    first, second = (
        [(p.id, p.solution) for p in File(write(*rows[::turn], name=f"{turn}.jsonl")).problems("train").problems]
        for turn in (1, -1)
    )
    assert len({name for name, _ in first}) == 4 and sorted(first) == sorted(second)


def test_the_alphabet_has_pairs(write: Any) -> None:
    assert File(write({"prompt": "p", "chosen": "ab", "rejected": "c"}, {"prompt": "q"})).alphabet == "abcpq"


def test_a_table_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a spreadsheet: expected JSON Lines, .* or TSV: save it as CSV"):
        File(str(tmp_path / "rows.xlsx"))


# ---------------------------------------------------------------- Parquet


def parquet(path: Path, rows: list[dict[str, Any]], **more: Any) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = dict.fromkeys(name for row in rows for name in row)
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows], **more), path)
    return str(path)


def test_parquet_is_read_as_the_same_rows(tmp_path: Path, write: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "p", "answer": "a", "tags": [["x"], []], "meta": {"n": 1, "f": 0.5}, "split": "train"},
        {"messages": [HI, HO], "split": "train"},
        {"prompt": "q", "chosen": "c", "rejected": "d", "split": "train"},
    ]
    ours, theirs = (
        list(File(p).problems("train").problems) for p in (write(*rows), parquet(tmp_path / "rows.parquet", rows))
    )
    for a, b in zip(ours, theirs, strict=True):
        assert (a.id, a.prompt, a.answer, a.solution) == (b.id, b.prompt, b.answer, b.solution)
        assert a.info == b.info


def test_values_that_json_has_not(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "at": datetime.date(2024, 2, 29), "price": Decimal("1.50"), "raw": b"\x00", "x": math.nan},
        {"prompt": "q", "at": None, "price": None, "raw": None, "x": 2.0},
    ]
    problems = [p for rows in both_or_one(File(parquet(tmp_path / "rows.parquet", rows))) for p in rows]
    found = {p.prompt: dict(p.info) for p in problems}
    assert found["p"] == {"at": "2024-02-29", "price": "1.50", "raw": b"\x00", "x": None}
    assert found["q"] == {"at": None, "price": None, "raw": None, "x": 2.0}


def test_a_bad_row_of_parquet_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(ValueError, match=r"rows\.parquet, row 2: no 'prompt'"):
        File(parquet(path, [{"prompt": "p"}, {"prompt": None}]))
    with pytest.raises(ValueError, match="row 1: `answer` is inf"):
        File(parquet(path, [{"prompt": "p", "answer": math.inf}]))
    with pytest.raises(ValueError, match="no rows"):
        File(parquet(path, [], schema=pytest.importorskip("pyarrow").schema([("prompt", "string")])))
    path.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(ValueError, match="after row 0: no good Parquet"):
        File(str(path))


def test_without_pyarrow_the_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[lm\]"'):
        File(str(path))


# ---------------------------------------------------------------- grading


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("42", "42", True),
        (" Forty  two\n", "forty two", True),
        ("42.0", "42", True),
        ("+42", "42", True),
        ("0.50", "0.5", True),
        ("\uff14\uff12", "42", True),
        ("42", "43", False),
        ("42 apples", "42", False),
        ("4 2", "42", False),
        ("", "42", False),
        ("4e1", "40", False),
        ("STRASSE", "straße", True),
        ("9" * 50, "9" * 49, False),
        ("1/2", "0.5", False),
        ("0." + "3" * 30, "0." + "3" * 31, False),
        ("4" + " " * 10**6 + "2", "4 2", True),  # white space is not length
        ("e\u0301" * 3000, "\u00e9" * 3000, True),  # nor is another form of the same
        ("a" + "\u0315\u0300" * 10**6, "a", False),  # hours, were it normalised: marks are sorted by insertion
    ],
)
def test_matches(text: str, answer: str, same: bool) -> None:
    assert matches(text, answer) is same


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("The answer is 42.", "42", True), ("It costs $1,000.00.", "1000", True), ("20 + 47 = 67", "67", True),
        ("\\boxed{42}", "42", True), ("**42**", "42", True), ("10km", "10", True), ("12,345,678", "12345678", True),
        ("is \u22125", "-5", True), ("x = -5", "-5", True), ("10-5", "5", True), ("4/2", "2", True), ("5", "5.0", True),
        ("42, 43", "42", False), ("10-5", "-5", False), ("1/2", "2", False), ("1/0", "1", False), ("12e5", "5", False),
        ("12e5", "12", False), ("a5", "5", False), ("3.5", "5", False), ("1,00", "100", False), ("2^10", "10", False),
        ("v1.2.3", "3", False), ("9" * 50, "9", False), ("1,2345", "2345", False),
        ("none", "5", False), ("5", "x", False),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text: str, answer: str, same: bool) -> None:
    assert ends_with(text, answer) is same


def test_a_file_of_numbers_alone_compares_the_last_number(write: Any) -> None:
    def grade(text: str, *answers: Any, **settings: Any) -> float:
        rows = [{"prompt": f"q{i}", "answer": a, "split": "train"} for i, a in enumerate(answers)]
        task = File(write(*rows), **settings)
        ids = np.array([1])
        assert bool(task.grades) is task.by_number
        return task.grade(task.problems("train")[0], [Step.of(ids, ids, info={"text": text})])["score"]

    said = "The answer is 1,000."
    assert grade(said, 1000) == grade(said, "1,000", "-2.5") == grade(said, 1000, "blue", match="number") == 1.0
    assert grade(said, 1000, "blue") == grade(said, 1000, match="exact") == 0.0
    assert grade("Blue ", "blue", 5, match="number") == grade("1000", 1000, match="exact") == 1.0


def test_grading(write: Any) -> None:
    task = File(write({"prompt": "6*7=", "answer": 42, "split": "train"}))
    ids = np.ones(2, np.int32)
    for text, score in (("42\n", 1.0), ("42.00", 1.0), ("41", 0.0), ("", 0.0), ("9" * 10**6, 0.0)):
        assert task.grade(task.problems("train")[0], [Step.of(ids, ids, info={"text": text})]) == {"score": score}


@pytest.mark.parametrize(("name", "mark"), [("rows.csv", ","), ("rows.TSV", "\t"), ("$(touch pwn)\".csv", ",")])
def test_tables_of_text_are_read(tmp_path: Path, name: str, mark: str) -> None:
    lines = ["\ufeffprompt|answer|note", '"6, 7\nand ""8"""|21|x', "|", "1+1|2|"]
    (tmp_path / name).write_text("\r\n".join(lines[:2] + lines[3:]).replace("|", mark), encoding="utf-8", newline="")
    rows = read(tmp_path / name, "here")
    assert [(r.prompt, r.answer) for r in rows] == [('6, 7\nand "8"', "21"), ("1+1", "2")]
    assert [r.info["note"] for r in rows] == ["x", None] and rows[1].place == "line 4"
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt,answer\np\n", "here, line 2: 1 cells, and 2 columns"),
        ("prompt,prompt\np,q\n", "its first line is .*: expected a name for each column, once"),
        ("", "its first line is"),
        ("prompt,answer\n", "the file has no rows"),
        ('prompt,answer\n"p,a\n', "here, line 2: unexpected end of data"),
    ],
)
def test_bad_tables_are_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        read(tmp_path / "rows.csv", "here")


@pytest.mark.parametrize("more", ['"answer": 1, "answer": 2', '"x": [{"answer": 1, "answer": 1}]'])
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, more: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "p", {more}}}')
    with pytest.raises(ValueError, match="here, line 1: 'answer' stands twice in one object"):
        read(tmp_path / "rows.jsonl", "here")


def test_parquet_that_stands_for_more_than_there_is_memory_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"prompt": ["a" * 2000] * 600, "answer": ["b"] * 600}), file, compression="zstd")
    assert file.stat().st_size < 10_000
    for memory, told in ((4 * 600_000, "after row 256: more than this machine's memory"), (9999, "it has 600 rows")):
        monkeypatch.setattr("shuhari.tasks.reading.measure_memory", lambda memory=memory: memory)
        with pytest.raises(ValueError, match=f"file/{file}: .*{told}"):
            File(str(file))


def test_a_text_that_parquet_writes_once_for_many_rows_is_not_unpacked(tmp_path: Path) -> None:
    """Rows are refused before they are made: the file is of thousands of bytes, its rows would be of 128 MB."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    long, file = "a" * 2_000_000, tmp_path / "d.parquet"
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([long]))
    offsets = pa.array([0, 64], pa.int32())
    for column in (codes, pa.array([long] * 64), pa.ListArray.from_arrays(offsets, codes)):
        parquet.write_table(pa.table({"prompt": column}), file, compression="zstd")
        assert file.stat().st_size < 20_000
        usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
        try:
            with pytest.raises(ValueError, match="after row 0: more than this machine's memory"):
                next(read_parquet(file, "f", 1 << 26))
        finally:
            pa.set_memory_pool(usual)
        assert pool.max_memory() < 10 * len(long)
    parquet.write_table(
        pa.table({"prompt": [long] * 20}), file, compression="zstd", use_dictionary=False,
        column_encoding={"prompt": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    with pytest.raises(ValueError, match="after row 3: more than this machine's memory"):
        list(read_parquet(file, "f", 6_500_000))


def test_all_encodings_of_parquet_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {"prompt": f"p{i % 7}" * 9, "m": [{"role": "user", "content": f"{i}"}], "n": i, "raw": b"x", "t": None}
        for i in range(700)
    ]
    file = tmp_path / "d.parquet"
    table = pa.Table.from_pylist(rows)
    ways: list[dict[str, Any]] = [
        {"dictionary_pagesize_limit": 40}, {"use_dictionary": False}, {"row_group_size": 90},
        {"use_dictionary": False, "column_encoding": {"prompt": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"raw": "DELTA_LENGTH_BYTE_ARRAY"}},
    ]  # fmt: skip
    for how in ways:
        parquet.write_table(table, file, **how)
        assert [row for _, row in read_parquet(file, "f", 1 << 30)] == rows
    few = pa.table({"m": [["a", "b"]] * 300 + [[f"{i}" * 99] for i in range(100)]})
    monkeypatch.setattr("shuhari.tasks.parquet.GROUP", 100)  # what pyarrow cannot read begins behind rows that it can
    parquet.write_table(few, file, dictionary_pagesize_limit=500, data_page_size=100, write_batch_size=20)
    assert [row for _, row in read_parquet(file, "f", 1 << 30)] == few.to_pylist()
    parquet.write_table(
        table, file, use_dictionary=False, column_encoding={"m.list.element.role": "DELTA_BYTE_ARRAY"}
    )
    with pytest.raises(ValueError, match=r"m\.list\.element\.role is a list of texts in the encoding DELTA"):
        list(read_parquet(file, "f", 1 << 30))


def test_many_numbers_in_one_row_are_refused_before_they_are_read(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"prompt": ["p"], "n": [[0] * 1_000_000]}), tmp_path / "d.parquet")
    assert (tmp_path / "d.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"it says that it has values of 80\d+ bytes"):
        list(read_parquet(tmp_path / "d.parquet", "f", 1 << 20))
