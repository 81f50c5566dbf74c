"""Problems with tools: a policy writes function calls, reads the results, and ends with a turn without a call.

Calls and results have the form of Hermes and Qwen:

    <tool_call>{"name": "price", "arguments": {"item": "pen"}}</tool_call>
    <tool_response>17</tool_response>

Left out: other forms of calls; multi-turn demonstrations (`[rollout]` sets which environments are played, but a
demonstration is played in the task's).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shuhari.bounds import Length, Seconds, check
from shuhari.data import ContractError, Payload, Problem, Request, Status, is_tokens, nearest
from shuhari.kernel import registry
from shuhari.kernel.registry import register
from shuhari.needs import Trace, role_model
from shuhari.ports import Ctx, ability
from shuhari.rollouts.function_tool import FunctionTool, ToolError
from shuhari.tasks.reading import read_strictly
from shuhari.tasks.source import CALLS

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LONGEST = 1 << 16  # most characters of a call that is parsed: the error message of a huge one takes seconds
# as the chat templates of Qwen 2.5 and Hermes present tools to a model
INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@register("environments", "tools")
@dataclass
class Tools:
    """Tool use: the policy calls Python functions while it answers a problem.

    Set `[rollout] use = "episode"` and `environments.use = "tools"`. Arguments are strictly validated against the
    annotations. An exception of a function is also a result: it begins with `error: `. A turn without a call ends the
    episode; that turn is graded. Rewards of each turn, with weight 0 unless `[reward.weights]` sets one: `tool_calls`,
    `tool_errors`. Raises ValueError for anything that is not a tool.
    """

    tools: tuple[str, ...]
    """Functions that the model may call by name, as dotted paths or `file.py:function`, with annotations and a
    docstring in Google or Sphinx form; they may be async."""
    describe: bool = True
    """Whether the prompt lists the tools: in the system message of a conversation, else before the text."""
    timeout: Seconds | None = 60.0
    """Seconds that one call may take; None sets no limit."""
    longest: Length = 4096
    """Largest number of characters of a tool's result that the model reads."""
    calls: Length = 8
    """Largest number of calls in one turn that are answered."""
    stamps = ("reward/tool_calls", "reward/tool_errors")

    def __post_init__(self) -> None:
        check(self)
        if not self.tools:
            raise ValueError("tools: none are named: expected functions, as file.py:function")
        if "?" in self.tools:
            raise ValueError("tools: which functions? Expected those that the model may call, as file.py:function: set "
                             "rollout.environments.tools")  # fmt: skip
        _ = self.known

    @cached_property
    def known(self) -> Mapping[str, FunctionTool]:
        """The tools, name -> tool."""
        found = [FunctionTool.of(registry.locate("tool", name)) for name in self.tools]
        if again := [
            t.name
            for i, t in enumerate(found)
            if t.name in {u.name for u in found[:i]}
        ]:
            raise ValueError(f"tools: two are called {again[0]!r}: expected a name of its own for each")
        return {t.name: t for t in found}

    def environment(self, request: Request, ctx: Ctx) -> Calling:
        return Calling(self)

    def tell(self, prompt: Any) -> Payload:
        """Returns the prompt with the description of the tools."""
        if not self.describe:
            return prompt
        told = INSTRUCTIONS.format(tools="\n".join(json.dumps(t.schema) for t in self.known.values()))
        if isinstance(prompt, str):
            return f"{told}\n\n{prompt}"
        if not isinstance(prompt, tuple) or not all(isinstance(m, Mapping) for m in prompt):
            raise ContractError(f"environments 'tools': the prompt is {str(prompt)[:60]!r}: expected text or messages")
        first, *rest = prompt
        if first["role"] == "system":
            return ({**first, "content": f"{first['content']}\n\n{told}"}, *rest)
        return ({"role": "system", "content": told}, *prompt)


class Calling:
    """One episode with the tools of `of`."""

    def __init__(self, of: Tools) -> None:
        self.of, self.role = of, "policy"
        self.ctx: Any = None
        self.prompt: Payload = None
        self.facts: dict[str, float] = {}
        self.last = -1  # the last token of the current turn

    def bind(self, ctx: Ctx, key: tuple[Any, ...]) -> None:
        self.ctx = ctx

    def reset(self, problem: Problem) -> Payload:
        self.prompt, self.last = problem.prompt, -1
        return self.of.tell(problem.prompt)

    def takes(self, trace: Trace) -> str:
        """Returns the text of a decision, and remembers its last token, which the text lacks."""
        if not is_tokens(trace.action) or "text" not in trace.info:
            raise ContractError("environments 'tools': the policy writes no text, and what it decides is no call")
        self.last = int(trace.action[-1]) if len(trace.action) else -1
        return str(trace.info["text"])

    async def step(self, text: str) -> tuple[Payload, dict[str, float], Status | None]:
        """Returns (the results of a turn's calls, the turn's rewards, FINISHED if it has no calls)."""
        told = [await self._answer(said) for said in find_calls(text, self.of.calls)]
        if OPEN in text.rpartition(CLOSE)[2]:
            told.append((False, f"{OPEN} is not closed by {CLOSE}"))
        self.facts = {CALLS: float(len(told))}
        numbers = {"tool_calls": float(len(told)), "tool_errors": float(sum(not good for good, _ in told))}
        return (self._show(told), numbers, None) if told else ("", numbers, Status.FINISHED)

    def _show(self, told: list[tuple[bool, str]]) -> Payload:
        """Returns the results as the policy reads them; without an end-of-turn token if the policy has written one."""
        shown = [text if good else f"error: {text}" for good, text in told]
        cut = [t if len(t) <= self.of.longest else f"{t[: self.of.longest]}..." for t in shown]
        answers = "\n".join(f"<tool_response>\n{t}\n</tool_response>" for t in cut)
        said = answers.encode("utf-8", "replace").decode()  # no half of a surrogate pair
        tokens = ability(role_model(self.ctx.models, self.role), "text")
        chats = not isinstance(self.prompt, str) or (tokens is not None and tokens.chat)
        if not chats:
            line: Any = self.ctx.encode_text("\n", self.role)  # which the policy may have written
            said = f"{said}\n" if len(line) == 1 and int(line[0]) == self.last else f"\n{said}\n"
        ids: Payload = self.ctx.encode_turn(said, self.prompt, self.role, self.last)
        return ids

    async def _answer(self, said: str) -> tuple[bool, str]:
        """Answers one call; returns (whether it succeeded, the result)."""
        try:
            name, arguments = read_call(said)
            tool = self.of.known.get(name)
            if tool is None:
                raise ToolError(f"no tool {name[:60]!r}; {nearest(name[:60], self.of.known)}")
            return True, await tool.answer(arguments, self.of.timeout)
        except ToolError as error:
            return False, str(error)


def find_calls(text: str, most: int) -> list[str]:
    """Returns the text between the marks of the first `most` calls, in time linear in the text."""
    found: list[str] = []
    at = 0
    while len(found) < most and (start := text.find(OPEN, at)) >= 0:
        start += len(OPEN)
        if (end := text.find(CLOSE, start)) < 0:
            break
        found.append(text[start:end])
        at = end + len(CLOSE)
    return found


def read_call(said: str) -> tuple[str, Any]:
    """Returns (name, arguments) of a call. Raises ToolError if it is too long or not a JSON object with a `name`."""
    if len(said) > LONGEST:
        raise ToolError(f"a call of {len(said)} characters: expected at most {LONGEST}")
    form = '{"name": ..., "arguments": {...}}'
    try:
        found = read_strictly(said)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"no JSON ({str(error)[:80]}): expected {form}") from None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise ToolError(f"expected {form}")
    return found["name"], found.get("arguments", {})
