"""Lists the registered tasks and examples of their problems.

Nothing heavy is made here: a task that needs a path, a package or a simulator gives an example by a classmethod
`preview`; any other is made with its defaults. A task that cannot be made is listed with the reason.
"""

from __future__ import annotations

import inspect
from typing import Any

from shuhari.data import Payload, read_first
from shuhari.kernel import registry
from shuhari.ports import ability


def list_tasks() -> list[dict[str, Any]]:
    """Returns one entry per task: `use` (its registered name), `name` (as a recipe writes it, with its path),
    `summary`, `spaces` ("text", or observation -> action), `example` {"prompt", "answer"} or None, `fields` (name ->
    default), `problem` (why a task could not be made, or None)."""
    return [_describe(name) for name in registry.names("task")]


def preview(task: Any, n: int = 3, split: str = "train") -> list[dict[str, Any]]:
    """Returns the first n problems of a task: `id`, `prompt`, `answer`, `solution`, `info`."""
    names = ("id", "prompt", "answer", "solution", "info")
    return [
        {name: getattr(p, name) for name in names}
        for p in read_first(task.problems(split), n)
    ]


def _describe(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"use": name, "name": name, "summary": "", "spaces": "text"}
    entry |= {"example": None, "problem": None, "fields": {}}
    try:
        cls: Any = registry.find("task", name)
        entry["summary"] = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
        entry["fields"] = {k: _default(p) for k, p in inspect.signature(cls).parameters.items()}
        if (preview_of := ability(cls, "preview")) is not None:
            shown = dict(preview_of())
            if "prompt" in shown:
                entry["example"] = {"prompt": shown.pop("prompt"), "answer": shown.pop("answer", None)}
            entry.update(shown)
        else:
            task = cls()
            entry["spaces"] = _describe_spaces(task.spaces())
            entry["example"] = _find_example(task)
    except Exception as error:  # one broken task must not break the listing
        entry["problem"] = f"{type(error).__name__}: {error}"
    return entry


def _find_example(task: Any) -> dict[str, Payload] | None:
    shown = preview(task, 1)
    return {k: shown[0][k] for k in ("prompt", "answer")} if shown and shown[0]["prompt"] is not None else None


def _describe_spaces(spaces: tuple[Any, Any] | None) -> str:
    return "text" if spaces is None else f"{spaces[0]} -> {spaces[1]}"


def _default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    return value if isinstance(value, bool | int | float | str | tuple) else None
