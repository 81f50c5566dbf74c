"""`data`: shows how a file of problems is read, before training on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import (
    format_number,
    make_console,
    make_printable,
    make_text,
    note,
    print_json,
    print_table,
    say,
)

READS = {"": "--json --set -n --model", "--row": "--json --set --model --split"}
LONGEST = 400  # characters of a text that are shown
STYLES = {"prompt": "dim", "trained": "bold green", "special": "cyan"}
MEANS = {"sampled": "as the model is asked", "trained": "as it is trained", "chosen": "as the chosen answer is trained",
         "rejected": "as the rejected answer is trained"}  # fmt: skip


def data(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="JSON Lines, JSON, Parquet, CSV or TSV, or a folder of a file a split.")],
    n: Annotated[int, typer.Option("-n", min=1, help="How many rows to show.")] = 3,
    row: Annotated[int | None, typer.Option(min=1, help="Show the row at this line (of Parquet, this row).")] = None,
    split: Annotated[str, typer.Option(help="Of which split the row is, where a folder has several files.")] = "",
    model: Annotated[str, typer.Option(help="Count its tokens, and show those of a row: a RUN, or a directory.")] = "",
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting of the task: key=value.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a file of problems is read: its columns, splits and lengths, and its first rows.

    With --model, also the number of tokens, rows that are too long for it, and the token ids of a row in sampling and
    in training: tokens that are trained on are marked, special tokens are named.

    Example: shuhari data problems.jsonl --set columns.prompt=question

    Example: shuhari data chats.jsonl --model latest --row 17
    """
    from shuhari.buffers.data_files import HDF5
    from shuhari.config.build import make_component
    from shuhari.config.overlay import RecipeError, lay, nest, parse_setting
    from shuhari.desk.data import find_row, report, show_tokens, to_plain

    check_together(ctx, READS)
    path = file.removeprefix("file/")
    if path.lower().endswith((".npz", *HDF5)):
        raise RecipeError("", f"{path}: a file of arrays, and `data` shows rows of problems; recorded episodes are "
                              f"trained on by --set buffer.data.use=file --set buffer.data.path={path}")  # fmt: skip
    given: dict[str, Any] = {}
    for key, value in map(parse_setting, sets or []):
        lay(given, nest(key[1:] if key[:1] == ("task",) else key, value), "--set", {})
    try:
        task = make_component("task", {"name": f"file/{path}", **given})
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        raise error if isinstance(error, RecipeError) else RecipeError("", str(error)) from None
    policy = _load(model) if model else None
    with _told("--row"):
        chosen = find_row(task, row, split) if row is not None else None
    with _told("--model"):
        found = report(task, n, policy) if chosen is None else {}
        problem = chosen or find_row(task, _find_first(found))
        if chosen is not None:
            found = {"row": {"place": task.places[chosen.id], **to_plain(chosen)}}
        if policy is not None:
            found["shown"] = {"place": task.places[problem.id], **show_tokens(problem, policy)}
    if json:
        print_json(found)
        return
    if row is None:
        _say_report(path, found)
    else:
        _say_row(found["row"])
    if "shown" in found:
        _say_tokens(found["shown"])


@contextmanager
def _told(option: str) -> Iterator[None]:
    """Turn a ValueError into a mistake in an option."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _load(name: str) -> Any:
    from shuhari.desk.api import load
    from shuhari.ports import is_text
    from shuhari.store import StoreError

    try:
        model = load(name).model
    except (ValueError, FileNotFoundError, StoreError) as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="--model") from None
    if not is_text(model):
        raise typer.BadParameter(f"{name} reads no text: expected a language model", param_hint="--model")
    return model


def _find_first(found: Mapping[str, Any]) -> int:
    return int(found["first"][0]["place"].replace(",", " ").split()[-1])


def _say_report(path: str, found: Mapping[str, Any]) -> None:
    say(f"{path}: {found['rows']} rows")
    print_table(("column", "rows", "read as"),
                [(name, c["rows"], c["read_as"]) for name, c in found["columns"].items()])  # fmt: skip
    for text in found["notes"]:
        note(text.removeprefix(f"file/{path}: "))
    print_table(("split", "rows", ""), [(name, s["rows"], s["for"]) for name, s in found["splits"].items()])
    for unit in ("characters", "tokens"):
        rows = [(name, *(format_number(x[k]) for k in ("least", "median", "most of 100", "longest")), x["at"])
                for name, x in found["lengths"].get(unit, {}).items()]  # fmt: skip
        if rows:
            print_table((unit, "least", "median", "99 of 100 have at most", "longest", "at"), rows)
    if "limit" in found["lengths"]:
        fit = f"all rows fit into the {found['lengths']['limit']} tokens of the model"
        say(found["lengths"]["too_long"] or f"{fit}; a recipe may read fewer (models.policy.context)")
    for row in found["first"]:
        _say_row(row)


def _say_row(row: Mapping[str, Any]) -> None:
    say(f"--- {row['place']}{', ' + row['split'] if 'split' in row else ''}")
    for name, value in row.items():
        if name in ("place", "split", "id") or value is None:
            continue
        if name == "prompt" and isinstance(value, list):
            for message in value:
                calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
                said = [*([message["content"]] if message["content"] else []), *(f"(calls {name})" for name in calls)]
                say(f"{message['role']}: {_cut(' '.join(said))}")
        else:
            say(f"{name}: {_cut(value)}")


def _cut(value: Any) -> str:
    return make_printable(str(value), LONGEST)


def _say_tokens(shown: Mapping[str, Any]) -> None:
    """Print the tokens of a row by use; coloured on a terminal, otherwise with marks around trained ones."""
    console = make_console()
    for name, means in MEANS.items():
        if name not in shown:
            continue
        tokens = shown[name]
        trained = sum(token["trained"] for token in tokens)
        more = f", {trained} of them trained on" if trained else ""
        say(f"--- {shown['place']}, {means}: {len(tokens)} tokens{more}")
        if console.is_terminal:
            text = make_text("")
            for token in tokens:
                text.append_text(make_text(token["text"], _choose_style(token)))
            console.print(text, soft_wrap=True)
        else:
            say(_mark(tokens))
        say(f"ids: {' '.join(str(token['id']) for token in tokens)}")


def _choose_style(token: Mapping[str, Any]) -> str:
    style = STYLES["trained" if token["trained"] else "prompt"]
    return f"{style} {STYLES['special']}" if token["special"] else style


def _mark(tokens: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of tokens, with `[[` and `]]` around what is trained on."""
    out, inside = [], False
    for token in [*tokens, {"trained": False, "text": ""}]:
        if token["trained"] != inside:
            out.append("[[" if token["trained"] else "]]")
            inside = token["trained"]
        out.append(token["text"])
    return "".join(out)
