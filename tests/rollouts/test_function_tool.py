"""Functions as tools: their schemas are those that transformers writes, and a function gets only what it names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from transformers.utils import get_json_schema

from shuhari.rollouts.function_tool import FunctionTool, ToolError, read_docstring


def mixed(a: int, b: float, c: str, d: bool, e: list[int], f: dict[str, float], g: Literal["x", "y"] = "x") -> str:
    """
    Does nothing much.

    It has two paragraphs.

    Args:
        a: The first,
            which goes on.
        b: A number: any.
        c: Some text.
        d: A truth value.
        e: Numbers.
        f: A table.
        g: One of two.

    Returns:
        The first of them.
    """
    return str(a)


def sphinx(city: str, days: int = 1) -> str:
    """Tell the weather.

    :param city: The city, by
        its name.
    :param int days: How many days.
    :returns: words
    """
    return f"{city} {days}"


class Colour(Enum):
    RED = "red"


def test_the_schema_is_that_of_transformers() -> None:
    ours, theirs = FunctionTool.of(mixed).schema["function"], get_json_schema(mixed)["function"]
    assert ours["name"] == theirs["name"] and ours["description"] == theirs["description"]
    assert ours["parameters"]["required"] == theirs["parameters"]["required"]
    for name, told in ours["parameters"]["properties"].items():
        assert {k: v for k, v in told.items() if k != "default"} == theirs["parameters"]["properties"][name], name


def test_sphinx_docstrings_say_the_same() -> None:
    schema = FunctionTool.of(sphinx).schema["function"]
    assert schema["description"] == "Tell the weather."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, by its name."},
            "days": {"type": "integer", "description": "How many days.", "default": 1},
        },
        "required": ["city"],
    }


def test_arguments_may_be_called_anything() -> None:
    def odd(title: str, schema: int, properties: int = 2) -> list[Any]:
        """Names that schemas and pydantic have uses for."""
        return [title, schema, properties]

    tool = FunctionTool.of(odd)
    assert list(tool.schema["function"]["parameters"]["properties"]) == ["title", "schema", "properties"]
    assert asyncio.run(tool.answer({"title": "a", "schema": 1})) == '["a", 1, 2]'


def test_google_arguments_with_types_and_sections_around() -> None:
    about, found = read_docstring("Adds.\n\nArgs:\n    a (int): One.\n    b: Two.\n\nRaises:\n    ValueError: never\n")
    assert about == "Adds." and found == {"a": "One.", "b": "Two."}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "city: Field required"),
        ({"city": 3}, "city: Input should be a valid string"),
        ({"city": "a", "days": "2"}, "days: Input should be a valid integer"),
        ({"city": "a", "days": True}, "days: Input should be a valid integer"),
        ({"city": "a", "dayz": 1}, "dayz: Extra inputs are not permitted"),
        ([1], "arguments: Input should be an object"),
        ("rm -rf /", "arguments: Input should be an object"),
    ],
)
def test_what_it_does_not_take_is_told_and_not_called(arguments: Any, told: str) -> None:
    with pytest.raises(ToolError, match=f"^sphinx: {told}"):
        FunctionTool.of(sphinx).read(arguments)


def test_values_are_of_the_types_that_are_named() -> None:
    def take(colour: Colour, size: Annotated[int, Field(ge=1)], most: float | None = None) -> str:
        """Take one."""
        return f"{colour.name} {size} {most}"

    tool = FunctionTool.of(take)
    assert tool.read({"colour": "red", "size": 2}) == {"colour": Colour.RED, "size": 2}  # the default is the function's
    assert asyncio.run(tool.answer({"colour": "red", "size": 2, "most": 1})) == "RED 2 1.0"
    with pytest.raises(ToolError, match="size: Input should be greater than or equal to 1"):
        tool.read({"colour": "red", "size": 0})


def test_errors_are_answers() -> None:
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0)
        return "done"

    def hang() -> None:
        """Hang."""
        time.sleep(30)

    def leave() -> None:
        """Leave."""
        raise SystemExit(3)

    def ask(function: Any, arguments: Any) -> str:
        return asyncio.run(FunctionTool.of(function).answer(arguments, 0.05 if function is hang else 30.0))

    assert ask(divide, {"a": 1, "b": 4}) == "0.25" and ask(wait, {}) == "done"
    for function, arguments, told in [
        (divide, {"a": 1, "b": 0}, "ZeroDivisionError: division by zero"),
        (hang, {}, "hang: no answer within 0.05 s"),
        (leave, {}, "SystemExit: 3"),
    ]:
        with pytest.raises(ToolError, match=told):
            ask(function, arguments)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> tuple[FunctionTool, FunctionTool]:
    def now() -> None:
        """Raise."""
        raise error

    async def later() -> None:
        """Raise."""
        await asyncio.sleep(0)
        raise error

    return FunctionTool.of(now), FunctionTool.of(later)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError("own"), "CancelledError: own"),
        (GeneratorExit("own"), "GeneratorExit: own"),
        (Unspeakable(), r"Unspeakable: \(it cannot be shown\)"),
    ],
)
@pytest.mark.parametrize("seconds", [None, 30.0])
def test_what_a_tool_raises_is_its_own(error: BaseException, told: str, seconds: float | None) -> None:
    for tool in raising(error):
        with pytest.raises(ToolError, match=f"^{told}$"):
            asyncio.run(tool.answer({}, seconds))


def test_what_ends_a_call_from_outside_is_no_answer() -> None:
    async def wait() -> None:
        """Wait."""
        await asyncio.sleep(30)

    async def cancel() -> None:
        task = asyncio.create_task(FunctionTool.of(wait).answer({}, 30.0))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    async def close() -> None:
        work = FunctionTool.of(wait).answer({}).__await__()
        next(work)
        await asyncio.create_task(asyncio.to_thread(work.close))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    asyncio.run(close())  # raises nothing
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(raising(KeyboardInterrupt())[0].answer({}, 30.0))


def test_what_is_no_json_is_no_answer() -> None:
    def measure() -> list[float]:
        """Measure."""
        return [1.0, float("nan")]

    with pytest.raises(ToolError, match="ValueError: Out of range float values"):
        asyncio.run(FunctionTool.of(measure).answer({}))


def _untyped(a) -> int:  # type: ignore[no-untyped-def]
    """Something."""
    return 1


def _silent(a: int) -> int:
    return a


def _open(*a: int) -> int:
    """Something."""
    return 1


def _strange(a: Callable[[], int]) -> int:
    """Something."""
    return 1


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (_untyped, "the argument 'a' of the tool '_untyped' has no annotation: expected a: int"),
        (_silent, "the tool '_silent' has no docstring"),
        (_open, r"the tool '_open' takes \*a: expected arguments that have names"),
        (_strange, "the tool '_strange' has an annotation that JSON does not know"),
        (Colour, "is not a tool: expected a function"),
        ("price", "is not a tool"),
    ],
)
def test_what_is_no_tool_is_refused(function: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        FunctionTool.of(function)
