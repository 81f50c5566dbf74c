"""Data as people have them: parts of text, ShareGPT, calls of tools, JSON arrays, columns of other names, splits,
folders and encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.files import find_named
from shuhari.data import Problem
from shuhari.tasks.file import File
from shuhari.tasks.messages import read_messages

HI, HO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def to(*rows: Any, name: str = "rows.jsonl", text: str | bytes = "", **settings: Any) -> File:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text or lines(*rows)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return File(str(path), **settings)

    return to


def listed(task: File, *splits: str) -> list[Problem]:
    """All problems of a file, in its order."""
    found = [p for split in task.counts for p in task.problems(split).problems if not splits or split in splits]
    return sorted(found, key=lambda p: int(task.places[p.id].split()[-1]))


def first(task: File) -> Problem:
    return listed(task)[0]


# ---------------------------------------------------------------- conversations


def test_parts_of_text_are_joined(make: Any) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    problem = first(make({"messages": [{"role": "user", "content": parts}, HO]}))
    assert problem.prompt == ({"role": "user", "content": "What is 2+2?"},) and problem.solution == "ho"


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video"])
def test_pictures_and_sound_are_refused_by_name(make: Any, kind: str) -> None:
    row = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind, kind: "x"}]}]}
    with pytest.raises(ValueError, match=f"line 2: `messages` has a part of type '{kind}': expected parts of text"):
        make({"messages": [HI]}, row)


def test_sharegpt(make: Any) -> None:
    talk = [("system", "be kind"), ("human", "hi"), ("gpt", "ho"), ("user", "more"), ("assistant", "ha")]
    problem = first(make({"conversations": [{"from": who, "value": said} for who, said in talk], "level": 2}))
    roles = ("system", "user", "assistant", "user")
    assert [m["role"] for m in problem.prompt] == list(roles)
    assert problem.prompt[1] == HI and problem.solution == "ha" and problem.info == {"level": 2}
    with pytest.raises(ValueError, match="line 1: `conversations` has a turn from 'humn'; did you mean 'human'"):
        make({"conversations": [{"from": "humn", "value": "x"}]})
    with pytest.raises(ValueError, match="both `conversations` and `messages`"):
        make({"conversations": [HI], "messages": [HI]})


@pytest.mark.parametrize("arguments", [{"item": "pen"}, '{"item": "pen"}'])
def test_calls_of_tools_stay_in_the_messages(make: Any, arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": arguments}}
    talk = [HI, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": "It is 3."}]  # fmt: skip
    problem = first(make({"messages": talk}))
    called = problem.prompt[1]
    assert called["content"] == "" and problem.solution == "It is 3."
    assert called["tool_calls"][0]["function"] == {"name": "price", "arguments": {"item": "pen"}}
    assert problem.prompt[2] == {"role": "tool", "tool_call_id": "c1", "content": "3"}
    json.dumps([dict(m) for m in problem.prompt])  # as chat templates are sent them


def test_two_conversations_that_differ_in_a_call_alone_are_two_prompts(make: Any) -> None:
    def row(item: str, split: str) -> dict[str, Any]:
        call = {"function": {"name": "price", "arguments": {"item": item}}}
        return {"messages": [HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "3"}],
                "split": split}  # fmt: skip

    assert make(row("pen", "train"), row("cup", "test")).counts == {"train": 1, "test": 1}
    with pytest.raises(ValueError, match="line 1 and line 2 have one prompt"):
        make(row("pen", "train"), row("pen", "test"))


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"role": "assistant", "tool_calls": [{"function": {"name": "price", "arguments": "{"}}]}, "the arguments '{'"),
        ({"role": "assistant", "tool_calls": [{"name": 3}]}, "has a call {'name': 3}"),
        ({"role": "assistant", "tool_calls": "price"}, "`tool_calls` 'price'"),
        ({"role": "user", "tool_calls": [{"name": "price"}]}, "only the assistant calls tools"),
        ({"role": "assistant", "content": None}, "expected messages with `role` and `content`"),
        ({"role": "assistant", "tool_calls": [{"name": "price"}]}, "ends with a call of the tool 'price'"),
    ],
)
def test_calls_that_are_none(make: Any, turn: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"line 1: .*{told}"):
        make({"messages": [HI, turn]})


def test_a_call_of_sharegpt() -> None:
    value = '{"name": "price", "arguments": {"item": "pen"}}'
    talk = [{"from": "function_call", "value": value}, {"from": "observation", "value": "3"}]
    called, answered = read_messages(talk, "conversations")
    assert called["role"] == "assistant" and called["tool_calls"][0]["function"]["name"] == "price"
    assert answered == {"role": "tool", "content": "3"}
    with pytest.raises(ValueError, match="has a function_call 'x': expected JSON"):
        read_messages([{"from": "function_call", "value": "x"}], "conversations")


def test_a_role_that_templates_do_not_know_is_told(make: Any) -> None:
    odd = make({"prompt": [{"role": "robot", "content": "x"}]}, {"prompt": [HI]}).odd
    assert len(odd) == 1 and "1 row has a turn of the role 'robot' (line 1): chat templates know system, user" in odd[0]
    assert make({"prompt": [HI]}).odd == ()


# ---------------------------------------------------------------- files


def test_json_arrays_and_objects_that_hold_one(make: Any) -> None:
    rows = [{"prompt": f"p{i}", "answer": i} for i in range(20)]
    for text in (json.dumps(rows, indent=1), json.dumps({"version": 1, "data": rows}), lines(*rows)):
        assert [p.answer for p in listed(make(name="rows.json", text=text))] == list(range(20))
    split = make(name="rows.json", text=json.dumps({"train": rows[:15], "test": rows[15:]}))
    assert split.counts == {"train": 15, "test": 5}
    with pytest.raises(ValueError, match=r"row 2: no 'prompt'"):
        make(name="rows.json", text=json.dumps([{"prompt": "p"}, {"x": 1}]))
    with pytest.raises(ValueError, match=r"holds 2 lists \('easy', 'hard'\)"):
        make(name="rows.json", text=json.dumps({"easy": rows[:1], "hard": rows[1:]}))
    with pytest.raises(ValueError, match="'a' stands twice"):
        make(name="rows.json", text='[{"prompt": "p", "a": 1, "a": 2}]')
    assert first(make(name="rows.json", text=json.dumps({"messages": [HI, HO]}, indent=1))).solution == "ho"


def test_parquet_with_lists_of_structs(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    call = {"function": {"name": "price", "arguments": {"item": "pen", "count": None}}}
    rows: list[Any] = [
        {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [call]},
                      {"role": "tool", "content": "3"}, HO]},
        {"messages": [HI, HO]},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    called, plain = listed(File(str(tmp_path / "rows.parquet")))
    assert called.prompt[1]["tool_calls"][0]["function"]["arguments"] == {"item": "pen"}
    assert plain.prompt == (HI,) and plain.solution == "ho"
    talk = [{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]
    pq.write_table(pa.Table.from_pylist(talk), tmp_path / "talk.parquet")
    assert first(File(str(tmp_path / "talk.parquet"))).prompt == (HI,)


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("prompt,answer\ncafé,1\n".encode("latin-1"), "r.csv",
         r"line 2: byte 0xe9 near .*caf.* is no UTF-8 .*if it is latin-1: iconv -f latin1 -t utf-8 r.csv > utf8-r.csv"),
        ('{"prompt": "a"}\n{"prompt": "é"}\n'.encode("latin-1"), "r.jsonl", r"line 2: byte 0xe9 .*iconv -f latin1"),
        ('[{"prompt": "a"},\n{"prompt": "é"}]\n'.encode("latin-1"), "r.json", r"line 2: byte 0xe9 .*iconv -f latin1"),
        ("prompt,answer\np,1\n".encode("utf-16"), "r.csv", "line 1: the file is UTF-16: .*iconv -f utf-16 -t utf-8"),
        ('{"prompt": "a"}\n'.encode("utf-16"), "r.jsonl", "line 1: the file is UTF-16: .*iconv -f utf-16 -t utf-8"),
        ('{"prompt": "a"}\n'.encode("utf-16-le"), "r.jsonl", "line 1: the file is UTF-16LE: .*iconv -f utf-16le"),
        (b"\x1f\x8b\x08\x00", "r.jsonl.gz", "a compressed file: .*gunzip -k r.jsonl.gz"),
    ],
)  # fmt: skip
def test_encodings_are_named(make: Any, text: bytes, name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make(name=name, text=text)


def test_a_mark_of_utf_8_is_read(make: Any) -> None:
    for name, text in (("r.csv", "prompt,answer\né,1\n"), ("r.json", '[{"prompt": "é", "answer": "1"}]')):
        assert first(make(name=name, text=b"\xef\xbb\xbf" + text.encode())).prompt == "é"


# ---------------------------------------------------------------- columns of other names


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "solution", "told"),
    [
        ({"question": "q", "answer": "a"}, "q", "a", None, "reads `question` as the prompt and `answer` as the answer"),
        ({"query": "q", "response": "r"}, "q", None, "r", "`query` as the prompt and `response` as the demonstration"),
        ({"problem": "q", "solution": "s", "answer": 4}, "q", 4, "s", "`problem` as the prompt, `answer` as the"),
        ({"instruction": "do", "input": "it", "output": "o"}, "do\n\nit", None, "o", "`instruction` (and `input`"),
        ({"instruction": "do", "input": "", "output": "o"}, "do", None, "o", "`instruction` (and `input` behind it)"),
        ({"instruction": "do", "output": "o"}, "do", None, "o", "`instruction` as the prompt and `output` as the dem"),
        ({"input": "i", "output": "o"}, "i", None, "o", "`input` as the prompt and `output` as the demonstration"),
        ({"text": "once"}, "", None, "once", "reads `text` as text to imitate, without a prompt"),
        ({"question": "q", "response": "r", "answer": "a"}, "q", "a", "r", "`response` as the demonstration"),
        ({"prompt": "p", "response": "r"}, "p", None, None, ""),
        ({"prompt": "p", "text": "r"}, "p", None, None, ""),
    ],
)  # fmt: skip
def test_columns_of_usual_names(make: Any, row: Any, prompt: str, answer: Any, solution: Any, told: str) -> None:
    task = make({**row, "level": 1})
    problem = first(task)
    assert (problem.prompt, problem.answer, problem.solution) == (prompt, answer, solution)
    assert problem.info["level"] == 1
    assert (len(task.odd) == 1 and told in task.odd[0]) if told else task.odd == ()


def test_what_was_recognised_is_where_errors_and_reports_look(make: Any) -> None:
    assert make({"question": "q", "response": "r"}).read_from == {
        "prompt": "question", "answer": "answer", "solution": "response"}  # fmt: skip
    assert make({"messages": [HI, HO]}).read_from["solution"] == "messages"
    assert make({"prompt": "p", "solution": "s"}).read_from["solution"] == "solution"
    pair = {"question": "q", "chosen": "The one", "rejected": "The other"}
    assert first(make(pair)).prompt == "q" and first(make(pair)).info == {"chosen": "The one", "rejected": "The other"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "q", "problem": "p", "answer": "a"}, "`question` and `problem` may each be the prompt: say"),
        ({"question": "q", "response": "r", "output": "o"}, "`response` and `output` may each be the demonstration"),
        ({"text": "t", "label": 1}, "`text` beside `label` may be a prompt or .*task.columns.answer = 'label'"),
        ({"input": "i"}, "no 'prompt' and no 'messages'"),
        ({"question": "q", "answer": "2 + 2\n#### 4"}, "task.format = 'gsm8k'"),
    ],
)
def test_two_readings_are_refused(make: Any, row: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make(row)


def test_the_settings_that_are_named_choose_a_reading(make: Any) -> None:
    two = {"question": "q", "problem": "p", "answer": "a"}
    assert first(make(two, columns={"prompt": "problem"})).prompt == "p"
    text = {"text": "t", "label": "neg"}
    assert first(make(text, columns={"prompt": "text", "answer": "label"})).answer == "neg"
    whole = first(make(text, columns={"completion": "text"}))
    assert (whole.prompt, whole.solution) == ("", "t")
    gsm = {"question": "q", "answer": "2 + 2\n#### 4"}
    assert first(make(gsm, format="gsm8k")).answer == "4"
    assert first(make(gsm, format="gsm8k")).solution == "2 + 2\n#### 4"


def test_texts_to_imitate_are_held_out_by_what_they_say(make: Any) -> None:
    counts = make(*({"text": f"story {i}"} for i in range(200)), test_fraction=0.3).counts
    assert counts["train"] + counts["test"] == 200 and 30 < counts["test"] < 90


@pytest.mark.parametrize(
    ("given", "label"), [(1, True), (0, False), (1.0, True), ("true", True), ("False", False), ("0", False)]
)
def test_labels(make: Any, given: Any, label: bool) -> None:
    assert first(make({"prompt": "p", "completion": "c", "label": given})).info["label"] is label


# ---------------------------------------------------------------- splits


@pytest.mark.parametrize("held", ["validation", "valid", "dev", "val", "eval", "Test"])
def test_names_of_splits(make: Any, held: str) -> None:
    task = make({"prompt": "a", "split": "train"}, {"prompt": "b", "split": held})
    assert task.problems("test")[0].prompt == "b" and task.counts == {"train": 1, held: 1}
    assert task.problems(held)[0].prompt == "b"
    if held != "Test":
        assert task.problems("validation")[0].prompt == "b"


def test_a_test_split_comes_before_a_validation_split(make: Any) -> None:
    task = make(*({"prompt": s, "split": s} for s in ("train", "validation", "test")))
    assert [task.problems(s)[0].prompt for s in ("train", "validation", "test")] == ["train", "validation", "test"]


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train-00000-of-00002.jsonl").write_text(lines({"prompt": "a"}, {"prompt": "b"}))
    (folder / "train-00001-of-00002.jsonl").write_text(lines({"prompt": "c"}))
    (folder / "valid.csv").write_text("prompt,note\nd,x\n")
    (folder / "test.json").write_text(json.dumps([{"prompt": "e"}]))
    (folder / "README.md").write_text("words")
    task = File(str(folder))
    assert task.counts == {"test": 1, "train": 3, "validation": 1}
    assert [p.prompt for p in task.problems("train").problems] == ["a", "b", "c"]
    assert next(iter(task.places.values())) == "test.json, row 1"
    (folder / "train.jsonl").write_text(lines({"prompt": "e"}))
    with pytest.raises(ValueError, match=r"test\.json, row 1 and train\.jsonl, line 1 have one prompt but the splits"):
        File(str(folder))
    (folder / "train.jsonl").write_text(lines({"prompt": "f", "split": "test"}))
    with pytest.raises(ValueError, match=r"train\.jsonl, line 1: `split` is 'test' in the file of the split 'train'"):
        File(str(folder))
    (folder / "train.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"mine, train\.jsonl, line 1: Expecting"):
        File(str(folder))


def test_a_folder_without_data_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a folder without data \(it has notes.txt\): expected a file for each split"):
        File(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text(lines({"prompt": "a"}))
    with pytest.raises(ValueError, match=r"none of its 1 rows is in the split 'train'"):
        File(str(tmp_path)).problems("train")


def test_a_run_knows_the_folder_that_it_was_made_with(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(lines({"prompt": "a"}))
    assert find_named(f"file/{tmp_path}") == tmp_path and find_named(str(tmp_path)) is None


# ---------------------------------------------------------------- what is odd


def test_pairs_of_one_answer_are_left_out_and_told(make: Any) -> None:
    same = [{"prompt": f"p{i}", "chosen": "x", "rejected": "x"} for i in range(2)]
    task = make({"prompt": "q", "chosen": "a", "rejected": "b"}, *same)
    assert [p.prompt for p in listed(task)] == ["q"]
    assert "2 of 3 rows have the same `chosen` and `rejected` (line 2, line 3), and are left out" in task.odd[0]
    with pytest.raises(ValueError, match="in every row `chosen` is the `rejected` too"):
        make(*same)


def test_empty_demonstrations_are_told(make: Any) -> None:
    rows = [{"prompt": f"p{i}", "completion": "" if i else "c"} for i in range(6)]
    assert "5 rows have an empty demonstration (line 2, line 3, line 4 and 2 more)" in make(*rows).odd[0]


def test_pairs_with_an_empty_side_are_left_out_and_told(make: Any) -> None:
    one, other = {"prompt": "p", "chosen": "a", "rejected": " "}, {"prompt": "r", "chosen": "", "rejected": "b"}
    task = make(one, {"prompt": "q", "chosen": "a", "rejected": "b"}, other)
    assert [p.prompt for p in listed(task)] == ["q"]
    assert task.odd[0].endswith("1 row has an empty `chosen` (line 3); no pair is made of it")
    assert task.odd[1].endswith("1 row has an empty `rejected` (line 1); no pair is made of it")
    with pytest.raises(ValueError, match="or one of them is empty: expected pairs of answers that differ"):
        make(one, other)
