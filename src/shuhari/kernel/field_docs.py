"""The sentence under a setting: a text below a field of a dataclass that describes the field.

    rate: Share = 0.5
    \"\"\"The share of prompts that get a hint; 0 turns hints off.\"\"\"

Editors, mkdocstrings and pydantic read these too. They are part of no digest.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any


@cache
def read_field_docs(cls: Any) -> Mapping[str, str]:
    """Return name -> sentence of the fields of a dataclass, inherited ones included, each on one line. Empty if the
    source of the class cannot be read."""
    out: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            out |= _read(base)
    return MappingProxyType(out)


def _read(cls: Any) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # typed in at a prompt, or made by code
        return {}
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef)), [])
    return {
        ast.unparse(field.target): " ".join(text.split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and (text := find_text(below)) is not None
    }


def find_text(node: ast.AST) -> str | None:
    """Return the text of a statement that is only a text, as docstrings are; None for any other."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None
