"""What is not imported until it is needed: help must answer at once, and torch alone takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "scipy", "matplotlib", "gymnasium", "uvicorn")


def imported(code: str) -> tuple[str, set[str]]:
    """(what the code printed, which of the heavy packages a new interpreter then holds)."""
    report = "import sys; print('\\n#', *sys.modules)"
    command = [sys.executable, "-c", f"try:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.rpartition("\n#")
    return text, set(HEAVY) & set(modules.split())


def test_the_probe_sees_an_import() -> None:
    assert imported("import scipy")[1] == {"scipy"}


def test_importing_shuhari_imports_nothing_heavy() -> None:
    assert imported("import shuhari")[1] == set()


@pytest.mark.parametrize("command", ["", "train", "methods", "serve"])
def test_help_imports_nothing_heavy(command: str) -> None:
    argv = ["shuhari", *command.split(), "--help"]
    text, heavy = imported(f"import sys; sys.argv = {argv}; from shuhari.desk.cli import main; main()")
    assert "Usage" in text
    assert heavy == set()
