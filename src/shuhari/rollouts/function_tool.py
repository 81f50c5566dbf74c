"""A plain function as a tool: its schema from annotations and docstring, and its calls from JSON.

The schema has OpenAI's function-calling form, as `transformers.utils.get_json_schema` writes it. Model output is
untrusted: a function gets only JSON values of its annotated types. Left out: types that JSON does not have, functions
with `*args` or `**kwargs`.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from shuhari.engines.time_limit import EscapeError, Overdue, call_within

SECTION = re.compile(r"^(?:args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?):\s*$", re.I)
GOOGLE = re.compile(r"^(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
REST = re.compile(r"^:(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


class ToolError(ValueError):
    """A call with wrong arguments, or one that failed; the model reads the message."""


@dataclass(frozen=True)
class FunctionTool:
    """A function by its name, with the schema of its arguments and the pydantic model that validates them."""

    name: str
    schema: Mapping[str, Any]
    call: Callable[..., Any] = field(repr=False)
    model: Any = field(repr=False)
    names: tuple[str, ...] = field(repr=False, default=())

    @classmethod
    def of(cls, function: Any) -> FunctionTool:
        """Wraps a function. Raises ValueError for anything else, and for one without annotations, a docstring or named
        arguments."""
        if not callable(function) or isinstance(function, type):
            raise ValueError(f"{function!r:.60} is not a tool: expected a function with annotations and a docstring")
        name = getattr(function, "__name__", type(function).__name__)
        about, described = read_docstring(inspect.getdoc(function) or "")
        if not about:
            raise ValueError(f"the tool {name!r} has no docstring: it tells the model what the tool does")
        hints = typing.get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        parameters = inspect.signature(function).parameters
        for i, (key, p) in enumerate(parameters.items()):
            if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                star = str(p).partition(":")[0]
                raise ValueError(f"the tool {name!r} takes {star}: expected arguments that have names")
            if key not in hints:
                raise ValueError(f"the argument {key!r} of the tool {name!r} has no annotation: expected {key}: int")
            default: Any = ... if p.default is p.empty else p.default
            # named by number, since pydantic reserves some names
            fields[f"a{i}"] = (hints[key], Field(default, alias=key, description=described.get(key)))
        strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
        try:
            model = create_model(name, __config__=strict, **fields)
            tables = _drop_titles(model.model_json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"the tool {name!r} has an annotation that JSON does not know: {why}") from None
        del tables["additionalProperties"]
        schema = {"type": "function", "function": {"name": name, "description": about, "parameters": tables}}
        return cls(name, schema, function, model, tuple(parameters))

    def read(self, arguments: Any) -> dict[str, Any]:
        """Validates a JSON object and returns the arguments by name. Raises ToolError that explains what is wrong."""
        try:
            found = self.model.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            wrong = [
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False, include_input=False)
            ]
            raise ToolError(f"{self.name}: {'; '.join(wrong[:3])}") from None
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{self.name}: {error}") from None
        given = found.model_fields_set
        return {key: getattr(found, f"a{i}") for i, key in enumerate(self.names) if f"a{i}" in given}

    async def answer(self, arguments: Any, seconds: float | None = None) -> str:
        """Calls the function and returns its result as text: a string as it is, anything else as JSON. Raises ToolError
        if the arguments are invalid, the function raises or takes more than `seconds`, or its result is neither text
        nor JSON."""
        values = self.read(arguments)
        try:
            given = await call_within(seconds, lambda: self.call(**values))
            return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, allow_nan=False)
        except Overdue:
            raise ToolError(f"{self.name}: no answer within {seconds:g} s") from None
        except Exception as escaped:
            error = escaped.__cause__ or escaped if isinstance(escaped, EscapeError) else escaped
            raise ToolError(f"{type(error).__name__}: {_say(error)}") from error


def _say(error: BaseException) -> str:
    try:
        return str(error)
    except (Exception, SystemExit):  # raised by its own __str__
        return "(it cannot be shown)"


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Returns (what the function does, argument -> description) of a docstring in Google or Sphinx (reST) form."""
    about: list[str] = []
    found: dict[str, str] = {}
    section, name, depth = "", "", -1
    for line in inspect.cleandoc(text).splitlines():
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if SECTION.match(line):
            section, name, depth = words.rstrip(":").lower(), "", -1
        elif m := REST.match(line):
            section, name = "rest", m["name"]
            found[name] = m["text"]
        elif line.startswith(":"):  # :returns: and the like
            section, name = "rest", ""
        elif not section:
            about.append(line)
        elif section[0] in "ap" and words and indent:  # args, arguments, parameters
            depth = indent if depth < 0 else depth
            if indent <= depth and (m := GOOGLE.match(words)):
                name = m["name"]
                found[name] = m["text"]
            elif name:
                found[name] = f"{found[name]} {words}".strip()
        elif section == "rest" and name and words:
            found[name] = f"{found[name]} {words}".strip()
    return "\n".join(about).strip(), {k: v for k, v in found.items() if v}


def _drop_titles(node: Any, named: bool = False) -> Any:
    """Returns the schema without the titles that pydantic adds; `named`: the keys of a mapping are argument names."""
    if isinstance(node, list):
        return [_drop_titles(x) for x in node]
    if not isinstance(node, Mapping):
        return node
    return {
        k: _drop_titles(v, k in ("properties", "$defs") and not named)
        for k, v in node.items()
        if named or k != "title" or not isinstance(v, str)
    }
