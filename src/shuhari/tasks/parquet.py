"""Reads rows of a Parquet file, which are not unpacked before their size is known: a small file may encode any number
of copies of one long text.

Texts and bytes are read as dictionaries, each distinct value once, and rows are built after their total size is known.
If pyarrow cannot do so (delta-encoded texts, and lists of texts that are only partly a dictionary), few rows are read
at once. Left out: encrypted files, files in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

GROUP = 1 << 16  # rows whose texts are read as one dictionary
BATCH = 256  # rows unpacked at once
FEW = 16  # the same, if their size is not known before
LEAST = 512  # least bytes of a row in memory
ITEM = 16  # least bytes of a value
WIDE = 8  # bytes of a number
EXCESS = "more than this machine's memory has room for; expected a smaller file"


def read_parquet(path: Path, called: str, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, row) of each row, counted from 1. `called`: the file's name in errors; `most`: limit in bytes of
    all rows. Raises ValueError for a file that is no Parquet or exceeds it, ModuleNotFoundError without pyarrow."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{called}: Parquet needs pyarrow: pip install "shuhari[lm]"') from error
    number = size = 0
    try:
        with ParquetFile(path) as file:
            _check_said(file, called, most)
            plans = _plan(file, most)
        for batch in _read(path, plans):
            if (size := size + sum(map(measure, batch.columns))) > most:
                raise ValueError(f"{called}: after row {number}: {EXCESS}")
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except (ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(f"{called}: after row {number}: no good Parquet: {error}") from None


def measure(array: Any) -> int:
    """Returns the bytes of text and numbers that an Arrow array needs as rows, without making them."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return int(compute.sum(lengths).as_py() or 0) + ITEM * len(array)
    if types.is_struct(kind):
        return ITEM * len(array) + sum(map(measure, array.flatten()))
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return ITEM * len(array) + measure(array.flatten())
    return int(array.nbytes) + ITEM * len(array)


def _read(path: Path, plans: list[tuple[list[str], int]]) -> Iterator[Any]:
    """Yields batches of rows, by the first plan that pyarrow supports; see `_plan`."""
    from pyarrow.parquet import ParquetFile

    done = 0
    for n, (shared, rows) in enumerate(plans):
        behind = 0  # rows read by this plan
        try:
            with ParquetFile(path, read_dictionary=shared) as file:
                for some in file.iter_batches(batch_size=rows):
                    for at in range(0, some.num_rows, BATCH):
                        batch = some.slice(at, BATCH)
                        behind += batch.num_rows
                        if (new := min(behind - done, batch.num_rows)) > 0:
                            done = behind
                            yield batch.slice(batch.num_rows - new)
            return
        except NotImplementedError:  # for lists of texts that are partly a dictionary
            if n == len(plans) - 1:
                raise


def _plan(file: Any, most: int) -> list[tuple[list[str], int]]:
    """Returns plans to read a file, the best first: the text columns read as dictionaries, and rows at once. Raises
    OSError for lists of delta-encoded texts: a row may have any size."""
    meta = file.metadata
    texts = [i for i in range(meta.num_columns) if file.schema.column(i).physical_type == "BYTE_ARRAY"]
    chunks = {
        i: [meta.row_group(g).column(i) for g in range(meta.num_row_groups)]
        for i in texts
    }
    lists = [i for i in texts if file.schema.column(i).max_repetition_level]
    written = {
        i: {
            e
            for c in chunks[i]
            for e in c.encodings
        }
        for i in texts
    }
    if bad := next((i for i in lists if "DELTA_BYTE_ARRAY" in written[i]), None):
        raise OSError(f"{file.schema.column(bad).path} is a list of texts in the encoding DELTA_BYTE_ARRAY: expected "
                      "PLAIN, or dictionaries")  # fmt: skip
    largest = max(
        (
            c.total_uncompressed_size
            for i in texts
            for c in chunks[i]
        ),
        default=0,
    )
    few = max(1, min(FEW, most // max(largest, 1)))
    changes = {
        i
        for i in texts
        if any(e.startswith("DELTA") for e in written[i])
    }
    first, flat = (
        [i for i in some if i not in changes]
        for some in (texts, sorted({*texts} - {*lists}))
    )
    plans = [(first, few if changes else GROUP), (flat, few)]
    return [
        ([file.schema.column(i).path for i in shared], rows)
        for shared, rows in plans
    ]


def _check_said(file: Any, called: str, most: int) -> None:
    """Raises ValueError if a file's own counts of rows or values exceed the memory."""
    meta = file.metadata
    if meta.num_rows * LEAST > most:
        raise ValueError(f"{called}: it says that it has {meta.num_rows} rows: {EXCESS}")
    size = 0
    for i in range(meta.num_columns):
        width = max(file.schema.column(i).length, WIDE)
        size += width * sum(meta.row_group(g).column(i).num_values for g in range(meta.num_row_groups))
    if size > most:
        raise ValueError(f"{called}: it says that it has values of {size} bytes: {EXCESS}")
