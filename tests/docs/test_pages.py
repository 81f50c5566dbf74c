"""What pages say is there: recipes and settings that they name, commands that they give, messages that they quote."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

import shuhari
from shuhari.config.library import list_names
from shuhari.desk.cli import app, main
from shuhari.lab.diagnosis import RULES

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(shuhari.__file__).parent
GUIDES = ("choosing", "gpu", "settings", "troubleshooting")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = re.compile(r"`((?:baselines|rlvr|curriculum|data|engine|beds)/[\w/]+)`")
OWN = {"ranks.toml", "counts.toml", "topr.toml", "sums.toml", "gravity.toml", "corridor:", "tank:",
       "mine.toml", "staged.toml", "guided.toml", "graded.toml", "by_role.toml", "stepped.toml", "watched.toml",
       "gated.toml", "apart.toml", "voted.toml"}
SECTIONS = r"(?:models|part|rollout|collect|buffer|engine|reward|evaluate|store|transform|follow)"


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def list_lines(*pages: str) -> list[str]:
    """The lines of blocks of code, those that go on joined, without comments."""
    blocks = [text.replace("\\\n", "") for page in pages for _, text in BLOCK.findall(read(page))]
    return [line.partition("  #")[0].strip() for text in blocks for line in text.splitlines()]


def list_commands() -> list[str]:
    return list_lines(*GUIDES)


def list_all() -> list[list[str]]:
    """The arguments of each command of ours that any page gives."""
    pages = ("../README", "../CONTRIBUTING", "../SKILL", *sorted(path.stem for path in DOCS.glob("*.md")))
    return [shlex.split(line)[1:] for line in sorted({*list_lines(*pages)}) if line.startswith("shuhari ")]


def list_trainings() -> list[list[str]]:
    """Those that train, but what a page has the reader write first: a test of that page runs it."""
    return [argv for argv in list_all() if argv[0] == "train" and not any(own in arg for arg in argv for own in OWN)]


@cache
def messages() -> tuple[str, ...]:
    """Every text of the source; what an f-string fills in is a NUL."""
    out = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                out.append("".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                out.append(node.value)
    return tuple(out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are given: the files that they name."""
    rows = {
        "problems": {"answer": "2", "completion": "2"},
        "demonstrations": {"completion": "2"},
        "pairs": {"chosen": "2", "rejected": "3"},
        "labels": {"completion": "2", "label": True},
        "steps": {"steps": ["1+1", "2"], "labels": [True, False]},
    }
    for name, row in rows.items():
        lines = [json.dumps({"prompt": f"{i}+1=", **row}) for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "rewards.py").write_text("def short(completions, **columns):\n    return [1.0 for _ in completions]\n")
    (tmp_path / "judges.py").write_text("def brief(prompts, completions):\n    return [0 for _ in completions]\n")
    (tmp_path / "my_recipe.toml").write_text('format = 1\nextends = "baselines/grpo"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_blocks_of_the_guides_are_commands() -> None:
    assert {kind for page in GUIDES for kind, _ in BLOCK.findall(read(page))} == {"bash"}
    assert len(list_commands()) > 15 and all(line.startswith("shuhari ") for line in list_commands())


@pytest.mark.parametrize("argv", list_trainings(), ids=shlex.join)
def test_a_training_resolves(argv: list[str], folder: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([*argv, *({"--dry-run"} - {*argv})])
    assert not end.value.code


def test_a_command_parses() -> None:
    commands = typer.main.get_group(app).commands
    found = list_all()
    assert len(found) > 60
    for name, *argv in found:
        commands[name].make_context(name, argv)


def test_recipes_that_commands_name_are_there() -> None:
    families = "|".join({name.partition("/")[0] for name in list_names()})
    named = {name for argv in list_all() for arg in argv if re.match(rf"({families})/", arg) for name in arg.split("+")}
    assert len(named) > 15 and named <= {*list_names()}


def test_recipes_that_pages_name_are_there() -> None:
    named = {name for path in DOCS.glob("*.md") for name in RECIPE.findall(path.read_text(encoding="utf-8"))}
    named = {n for n in named - {*list_names()} if not re.search(rf"`{n}` \|", read("metrics"))}
    assert not {n for n in named if not any(known.startswith(f"{n}/") for known in list_names())}
    assert len(set(RECIPE.findall(read("choosing")))) > 25


@pytest.mark.parametrize("page", GUIDES)
def test_settings_that_guides_name_are_there(page: str) -> None:
    known = {*re.findall(r"^\| `(\w+)`", read("settings"), re.MULTILINE)}
    named = re.findall(rf"[`\s]({SECTIONS}\.[\w.<>]+?)(?:=\S*)?[`\s]", read(page))
    assert page == "settings" or named
    known |= {"drop_uniform_groups", "use", "<name>"}  # a transform of a recipe, what chooses a component, any name
    assert not {key for key in named if key.rpartition(".")[2] not in known}


def test_messages_that_are_quoted_are_in_the_source() -> None:
    quoted = [text for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", read("troubleshooting"), re.MULTILINE)
              for text in re.findall(r"`([^`]+)`", cell) if " " in text]  # fmt: skip
    assert len(quoted) > 20
    assert not [text for text in quoted if not any(text in message for message in messages())]


def test_rules_that_are_named_are_there() -> None:
    section = read("troubleshooting").partition("## It does not learn")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() if line.startswith("| ")
             for name in re.findall(r"`([a-z-]+-[a-z-]+)`", line.split("|")[2])}  # fmt: skip
    assert len(named) > 8 and named <= {rule.name for rule in RULES}
