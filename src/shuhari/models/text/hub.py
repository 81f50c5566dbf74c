"""Fetches a model from the Hugging Face hub by its id, so that it can be checked as any other directory.

Only JSON, safetensors and tokenizer files are fetched. A first request finds out within about a second whether the hub
can be reached; if not, an earlier download is used, if there is one. Left out: revisions, private hubs beyond what
huggingface_hub reads from the environment (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from shuhari.data import nearest

KINDS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.tiktoken", "vocab.txt", "merges.txt")
_ID = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
REACH = 1.0  # seconds in which the hub must answer


def fetch(name: str, place: Path) -> Path:
    """Returns the directory of a model's snapshot. Raises FileNotFoundError if `name` is neither a directory (which
    would be `place`) nor a model of the hub, or the hub cannot be reached."""
    there = [p.name for p in place.parent.iterdir() if p.is_dir()] if place.parent.is_dir() else []
    near = nearest(place.name, there)
    missing = f"no directory {name!r} (looked in {Path.cwd()}{f'; {near}' if near.startswith('did you mean') else ''})"
    if not _is_id(name):
        raise FileNotFoundError(missing)
    from huggingface_hub import snapshot_download

    try:
        found = _ask(name)
        return Path(snapshot_download(name, revision=found.sha, allow_patterns=list(KINDS)))
    except Exception as error:
        try:
            return Path(snapshot_download(name, allow_patterns=list(KINDS), local_files_only=True))
        except Exception:
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FileNotFoundError(f"{missing}, and no model of the hub: {first}") from None


def _is_id(name: str) -> bool:
    """Whether a name may be a hub id: `owner/model`, or a single old one."""
    return len(name) <= 96 and ".." not in name and "--" not in name and _ID.fullmatch(name) is not None


def _ask(name: str) -> Any:
    """Returns the hub's data on a model. Raises if there is none, or no reply in time: the address lookup may exceed
    any connection timeout, so it runs in a thread."""
    from huggingface_hub import HfApi

    answers: list[Any] = []

    def look() -> None:
        try:
            answers.append(HfApi().model_info(name, timeout=REACH))
        except Exception as error:
            answers.append(error)

    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(2 * REACH)
    if not answers:
        raise TimeoutError(f"it did not answer within {2 * REACH:g} s")
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]
