"""Rewrites a tokenizer.json with only known steps, of bounded growth, whose expressions run in linear time.

Left out: the quality of its vocabulary. Growth is the largest number of output characters per input character.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from shuhari.models.text.expressions import explain_slow

KEYS = "version added_tokens normalizer pre_tokenizer post_processor decoder model".split()
KINDS = {
    "normalizer": "Sequence NFC NFD NFKC NFKD Nmt Lowercase StripAccents Strip Replace Prepend Precompiled "
    "BertNormalizer ByteLevel",
    "pre_tokenizer": "Sequence Split ByteLevel Metaspace Whitespace WhitespaceSplit BertPreTokenizer Punctuation "
    "Digits UnicodeScripts CharDelimiterSplit FixedLength Delimiter",
    "post_processor": "Sequence ByteLevel TemplateProcessing BertProcessing RobertaProcessing",
    "decoder": "Sequence ByteLevel Replace Strip Fuse ByteFallback Metaspace WordPiece BPEDecoder CTC",
    "model": "BPE Unigram WordPiece WordLevel",
}
INNER = ("normalizers", "pretokenizers", "processors", "decoders")
FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # of Unicode, at most; applying another one adds nothing
GROWTH = 128  # of a text by all steps
STEPS, DEPTH = 64, 8  # in one list; nesting of lists
TOKEN = 1 << 12  # characters of an added token, or of a piece
PATTERN = 1 << 14  # characters of an expression


def clean_tokenizer(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a tokenizer.json that is loaded. Raises ValueError for a step that is unknown, that lets
    texts grow without bound, or whose expression may take forever. Truncation and padding, which are not used here, are
    left out."""
    out = {key: found.get(key) for key in KEYS} | {"truncation": None, "padding": None}
    for name, kinds in KINDS.items():
        step = out[name]
        if step is not None or name == "model":
            growth = _check_steps(name, step, kinds.split(), 0)
            if growth > GROWTH:
                raise ValueError(f"its {name} may make {growth:.3g} characters of one: expected at most {GROWTH}")
    model: Mapping[str, Any] = out["model"] or {}
    if model.get("dropout"):
        raise ValueError(f"its model drops merges at random (dropout {model['dropout']}): expected none")
    added = out["added_tokens"] or []
    long = (not isinstance(t, Mapping) or len(str(t.get("content"))) > TOKEN for t in added)
    if not isinstance(added, list) or any(long):
        raise ValueError(f"its added_tokens are no list of tokens of at most {TOKEN} characters")
    return out


def check_pattern(pattern: str) -> None:
    """Raises ValueError for an expression that may take exponential time."""
    why = f"it has {len(pattern)} characters" if len(pattern) > PATTERN else explain_slow(pattern)
    if why:
        raise ValueError(f"the regular expression {pattern[:60]!r}: {why}: expected one that takes no more time than "
                         "its text is long")  # fmt: skip


def list_patterns(tree: Any) -> Iterator[str]:
    """Yields the regular expressions in JSON: {"Regex": ..}, and a text under the key `pattern`."""
    stack = [tree]
    while stack:
        top = stack.pop()
        if isinstance(top, Mapping):
            yield from (top[key] for key in ("Regex", "pattern") if isinstance(top.get(key), str))
            stack += [x for x in top.values() if isinstance(x, Mapping | list)]
        elif isinstance(top, list):
            stack += [x for x in top if isinstance(x, Mapping | list)]


def _check_steps(name: str, step: Any, kinds: list[str], depth: int) -> float:
    """Returns how much a step, with those in it, may make a text grow."""
    kind = step.get("type") if isinstance(step, Mapping) else None
    if name == "model" and isinstance(step, Mapping) and kind is None:  # of the first versions of the format
        return 1.0
    if kind not in kinds:
        raise ValueError(f"its {name} has a step {str(kind)[:60]!r}: expected {', '.join(kinds)}")
    if name == "model":
        return 1.0
    inner = next((step[key] for key in INNER if isinstance(step.get(key), list)), None)
    if kind == "Sequence":
        if inner is None or len(inner) > STEPS or depth == DEPTH:
            many = f"{len(inner or [])} steps, {depth} deep"
            raise ValueError(f"its {name} has {many}: expected at most {STEPS}, {DEPTH} deep")
        growth, form = 1.0, 1.0
        for one in inner:
            if isinstance(one, Mapping) and one.get("type") in FORMS:
                form = max(form, FORMS[one["type"]])
            else:
                growth *= _check_steps(name, one, kinds, depth + 1)
        return growth * form
    for pattern in list_patterns({k: v for k, v in step.items() if k != "pattern"} | _pattern_of(step)):
        check_pattern(pattern)
    return _measure(name, kind, step)


def _pattern_of(step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `pattern` that is an expression; one of {"String": ..} is plain text."""
    pattern = step.get("pattern")
    return {} if isinstance(pattern, Mapping) and "String" in pattern else {"pattern": pattern}


def _measure(name: str, kind: str, step: Mapping[str, Any]) -> float:
    if kind in FORMS:
        return FORMS[kind]
    if kind == "Replace":
        pattern, content = step.get("pattern"), str(step.get("content", ""))
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        if text == "":
            raise ValueError(f"its {name} replaces the empty text: expected some")
        return max(1.0, len(content) / len(text)) if isinstance(text, str) else 1.0 + len(content)
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if kind == "Precompiled":
        return _measure_charsmap(str(step.get("precompiled_charsmap") or ""))
    if kind == "TemplateProcessing":
        parts = [*(step.get("single") or []), *(step.get("pair") or []), *(step.get("special_tokens") or {}).values()]
        ids = (p.get("ids") for p in parts if isinstance(p, Mapping))
        return float(len(parts) + sum(len(x) for x in ids if isinstance(x, list)))
    return {"ByteLevel": 4.0, "BertNormalizer": 4.0, "Lowercase": 3.0}.get(kind, 1.0)


def _measure_charsmap(text: str) -> float:
    """Returns the longest text that a compiled table of sentencepiece may write for one that it finds. The data are the
    size of a table, the table, and texts that end with 0."""
    data = base64.b64decode(text)
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size > len(data) - 4:
        if not data:
            return 1.0
        raise ValueError("its precompiled_charsmap is no table of sentencepiece")
    return max(1.0, float(max(map(len, data[4 + size :].split(b"\0")), default=1)))
