"""Reads raw rows of a file, without interpreting them: JSON Lines, JSON, CSV, TSV and Parquet, and folders of these, in
which each file is a split.

Left out: other formats, streaming (a file is held in memory), compressed files.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.data import nearest
from shuhari.store.files import measure_memory
from shuhari.tasks.parquet import read_parquet
from shuhari.tasks.splits import name_split

TABLES = {".csv": ",", ".tsv": "\t"}  # with column names in the first line
ENDS = (".jsonl", ".json", ".ndjson", ".parquet", *TABLES)
CELL = 1 << 24  # characters of a cell
FORMATS = "JSON Lines, JSON, Parquet, CSV or TSV"
PACKED = {b"\x1f\x8b": "gunzip -k", b"PK": "unzip", b"\x28\xb5": "unzstd", b"BZ": "bunzip2 -k", b"\xfd7": "unxz -k"}
MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
FIELDS = frozenset(  # an object with any of these is a row
    "prompt messages conversations completion chosen rejected question instruction query problem text".split()
)


@dataclass(frozen=True)
class Raw:
    """A row as the file has it. `place`: its name in errors; `split`: that of its file, "" for a single file."""

    place: str
    value: Any
    split: str = ""


def read_raw(path: Path, called: str) -> Iterator[Raw]:
    """Yields the rows of a file, or of the files of a folder, in order. `called`: the name in errors. Raises
    ValueError, naming the place of the error; FileNotFoundError with the nearest file; ModuleNotFoundError if Parquet
    needs pyarrow."""
    if path.is_dir():
        yield from _read_folder(path, called)
        return
    if not path.is_file():
        there = [p.name for p in path.parent.glob("*") if p.suffix.lower() in ENDS]
        message = nearest(path.name, there) if there else ""
        places = f"looked in {Path.cwd()}; of a recipe file beside that first"
        raise FileNotFoundError(f"{called}: no such file ({places}); {message}".rstrip("; "))
    end = path.suffix.lower()
    if end in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{called}: a spreadsheet: expected {FORMATS}: save it as CSV")
    with path.open("rb") as file:
        first = file.read(4)
    for mark, command in PACKED.items():
        if first.startswith(mark):
            raise ValueError(f"{called}: a compressed file: expected {FORMATS}: unpack it ({command} {path.name})")
    if first == b"PAR1":  # a quarter of the memory is for rows, and the problems made from them
        found: Iterator[tuple[str, Any]] = read_parquet(path, called, measure_memory() // 4)
    elif end in TABLES:
        found = _read_table(path, called)
    else:
        found = _read_json(path, called) if end == ".json" else _read_lines(path, called)
    for place, value in found:
        yield value if isinstance(value, Raw) else Raw(place, value)


def list_parts(folder: Path) -> dict[Path, str]:
    """Returns file -> split of the data files in a folder, in the order of their names."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in ENDS and p.name[0] not in "._")
    return {p: name_split(p.stem) for p in files}


def read_strictly(text: str) -> Any:
    """Parses JSON. Raises ValueError for a constant that JSON does not have (NaN), and for an object with a repeated
    key."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_take_once)


def shorten(value: Any) -> str:
    """Returns a value as errors show it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _read_folder(folder: Path, called: str) -> Iterator[Raw]:
    parts = list_parts(folder)
    if not parts:
        there = ", ".join(sorted(p.name for p in folder.iterdir())[:4])
        found = f"it has {there}" if there else "it is empty"
        raise ValueError(f"{called}: a folder without data ({found}): expected a file for each split, such as "
                         "train.jsonl and test.jsonl")  # fmt: skip
    for file, split in parts.items():
        for raw in read_raw(file, f"{called}, {file.name}"):
            yield Raw(f"{file.name}, {raw.place}", raw.value, raw.split or split)


def _read_lines(path: Path, called: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of each line that is not blank."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = _decode(line, number, path, called)
            if text.strip():
                yield _parse(text, f"line {number}", called)


def _read_json(path: Path, called: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of one array of rows, of an object that holds one (or one for each split), of a single
    object, or of one object per line."""
    content = path.read_bytes()
    if (size := 16 * len(content)) > (room := measure_memory() // 2):
        raise ValueError(f"{called}: {len(content)} bytes of JSON, which take about {size} and there is room for "
                         f"{room}: expected JSON Lines, a row a line")  # fmt: skip
    text = _decode(content, 1, path, called)
    try:
        whole = read_strictly(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and text.lstrip()[:1] == "{" and "Extra data" in error.msg:
            yield from _read_lines(path, called)
            return
        raise ValueError(f"{called}: {str(error) or type(error).__name__}") from None
    if isinstance(whole, list):
        yield from ((f"row {n}", row) for n, row in enumerate(whole, 1))
        return
    if not isinstance(whole, dict) or FIELDS & whole.keys():
        yield "line 1", whole
        return
    lists = {k: v for k, v in whole.items() if isinstance(v, list) and any(map(_is_object, v))}
    splits = {k: name_split(k) for k in lists}
    if not lists:
        yield "line 1", whole
    elif len(lists) == 1 or all(split != k or split in ("train", "test", "validation") for k, split in splits.items()):
        several = len(lists) > 1
        for name, rows in lists.items():
            of = f" of {name!r}" if several else ""
            yield from ((f"row {n}{of}", Raw(f"row {n}{of}", row, splits[name] * several))
                        for n, row in enumerate(rows, 1))  # fmt: skip
    else:
        names = ", ".join(map(repr, lists))
        raise ValueError(f"{called}: an object that holds {len(lists)} lists ({names}): expected one list of rows: "
                         "save one of them as a file of its own")  # fmt: skip


def _read_table(path: Path, called: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, row) of each row of a CSV or TSV file (RFC 4180), whose first line names the columns; an empty
    cell is None. Every value is text."""
    csv.field_size_limit(CELL)
    with path.open("rb") as raw:
        _decode(raw.read(64).rpartition(b"\n")[0], 1, path, called)  # detects another encoding by the first line
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=TABLES[path.suffix.lower()], strict=True)
        try:
            names = next(lines, [])
            if not names or not all(names) or len(set(names)) < len(names):
                message = f"its first line is {shorten(names)}: expected a name for each column, once"
                raise ValueError(f"{called}: {message}")
            for cells in lines:
                if cells and len(cells) != len(names):
                    raise ValueError(f"{called}, line {lines.line_num}: {len(cells)} cells, and {len(names)} columns")
                if cells:
                    yield f"line {lines.line_num}", {k: v or None for k, v in zip(names, cells, strict=True)}
        except csv.Error as error:
            raise ValueError(f"{called}, line {lines.line_num}: {error}") from None
        except UnicodeDecodeError:
            with path.open("rb") as raw:
                for number, line in enumerate(raw, 1):
                    _decode(line, number, path, called)
            raise


def _decode(line: bytes, number: int, path: Path, called: str) -> str:
    """Decodes a line (or a whole file, as line 1) of UTF-8, the first with or without its byte-order mark. Raises
    ValueError with the likely encoding, and the command that converts it."""
    name = next((name for mark, name in MARKS.items() if number == 1 and line.startswith(mark)), "")
    if not name and number == 1 and b"\0" in line[:64] and not line.startswith(b"\0\0"):
        name = "UTF-16LE" if line[1:2] == b"\0" else "UTF-16BE"
    try:
        if not name:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        number += line[: error.start].count(b"\n")
        found, near = line[error.start], line[max(0, error.start - 20) : error.start + 20].decode("latin-1")
        told = f"line {number}: byte 0x{found:02x} near {near!r} is no UTF-8 (utf-8): expected UTF-8; if it is latin-1"
        command = f"iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}"
    else:
        told = f"line {number}: the file is {name}: expected UTF-8"
        command = f"iconv -f {name.lower()} -t utf-8 {path.name} > utf8-{path.name}"
    raise ValueError(f"{called}, {told}: {command}")


def _parse(text: str, place: str, called: str) -> tuple[str, Any]:
    try:
        return place, read_strictly(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{called}, {place}: {str(error) or type(error).__name__}") from None


def _take_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shorten(name)} stands twice in one object: expected each key once")
        found[name] = value
    return found


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def find_columns(rows: list[Raw]) -> Mapping[str, int]:
    """Returns column -> number of rows with a value."""
    count: dict[str, int] = {}
    for raw in rows:
        for name, value in raw.value.items() if isinstance(raw.value, Mapping) else ():
            count[name] = count.get(name, 0) + (value is not None)
    return count
