"""`components`: every registered name is listed and can be shown; what is shown is what the class says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.cli.components import complete_kind
from shuhari.desk.components import describe, summarise
from shuhari.kernel import registry
from shuhari.kernel.field_docs import read_field_docs
from shuhari.learners.parts import Term

OWN = '''
from dataclasses import dataclass, field
from typing import Annotated
from shuhari.bounds import Bounds

@dataclass
class Half:
    """Halves it.

    Really."""

    share: Annotated[float, Bounds(0, 1)]
    names: tuple[str, ...] = ("a",)
    needs = ()
'''


def listed(done: Any) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_all_that_is_registered_is_listed_and_can_be_shown(shuhari: Any) -> None:
    found = {(c["kind"], c["name"]): c["summary"] for c in listed(shuhari("components", "--json"))}
    assert found.keys() == registry.entries().keys()
    assert not [key for key, summary in found.items() if not summary]
    for kind, name in sorted(found):
        json.dumps(describe(kind, name), default=str)


def test_settings_bounds_and_columns_of_one(shuhari: Any) -> None:
    told = listed(shuhari("components", "transform", "gae", "--json"))
    settings = {s["name"]: s for s in told["settings"]}
    lam = settings["lam"]
    assert "lambda" in lam.pop("doc")
    assert lam == {"name": "lam", "type": "number or schedule", "bounds": "a number in [0, 1]", "default": 0.95,
                   "required": False}  # fmt: skip
    assert told["declares"]["stamps"] == ["advantage", "return"] and told["declares"]["needs"] == ["critic/value"]
    assert "needs" not in settings  # no setting
    out = shuhari("components", "buffer", "offline").out
    assert "(required)" in out and "a recording" in out and "a number in [0, 1)" in out


def test_an_infinity_is_said(shuhari: Any) -> None:
    """A default of inf is no missing one, in JSON as in words."""
    told = listed(shuhari("components", "objective", "kl_cov", "--json"))
    low = next(s for s in told["settings"] if s["name"] == "low")
    assert (low["default"], low["required"], low["bounds"]) == ("inf", False, "a number of 0 or more, or inf")
    lines = shuhari("components", "objective", "kl_cov").out.splitlines()
    line = next(x for x in lines if x.strip().startswith("low "))
    assert "or inf" in line and line.split()[-1] == "inf"


def test_what_a_docstring_points_to_is_printed(shuhari: Any) -> None:
    """A table stands in the docstring of a module; what a component says is told with what its module says."""
    assert "| SimPO " in shuhari("components", "objective", "preference").out
    tables = [key for key in registry.entries() if "module's table" in describe(*key)["doc"]]
    assert ("objective", "preference") in tables and all("|--" in describe(*key)["module"] for key in tables)
    assert not [key for key in registry.entries() if "table above" in describe(*key)["doc"]]


def test_a_preset_is_the_default_of_its_name() -> None:
    decoupled = [next(s["default"] for s in describe("optimiser", n)["settings"] if s["name"] == "decoupled")
                 for n in ("adamw", "adam")]  # fmt: skip
    assert decoupled == [True, False]


def test_a_name_alone_is_enough_where_it_is_of_one_kind(shuhari: Any) -> None:
    assert listed(shuhari("components", "gae", "--json"))["kind"] == "transform"
    several = {n for k, n in registry.entries() if sum(m == n for _, m in registry.entries()) > 1}
    done = shuhari("components", name := min(several))
    assert done.code == 2 and "several" in done.err and name in done.err


def test_a_class_that_is_registered_needs_no_kind(shuhari: Any, home: Path) -> None:
    own = OWN.replace("@dataclass\n", '@register("predictor", "half")\n@dataclass\n')
    (home / "halves.py").write_text("from shuhari.kernel.registry import register\n" + own)
    told = listed(shuhari("components", "halves.py:Half", "--json"))
    assert (told["kind"], told["name"]) == ("predictor", "half")
    del registry._ENTRIES["predictor", "half"]


def test_a_class_that_is_not_registered_or_not_there_is_told(shuhari: Any, home: Path) -> None:
    (home / "plain.py").write_text(OWN)
    done = shuhari("components", "plain.py:Half")
    assert done.code == 2 and "name its kind too" in " ".join(done.err.replace("│", " ").split())
    done = shuhari("components", "plain.py:Hal")
    assert done.code == 2 and "did you mean 'Half'?" in " ".join(done.err.replace("│", " ").split())


def test_the_name_of_a_setting_is_explained(shuhari: Any) -> None:
    """Each sentence stands once, with all that have the setting; a name that no setting has is refused."""
    (told,) = listed(shuhari("components", "reduce", "--json"))
    assert told == {"setting": "reduce", "doc": read_field_docs(Term)["reduce"].rstrip("."),
                    "of": ["every term (a loss of a part)"]}  # fmt: skip
    found = {owner: one["doc"] for one in listed(shuhari("components", "level", "--json")) for owner in one["of"]}
    assert found["transform gae"] == found["transform returns"] != found["objective clip"]
    assert len({one["doc"] for one in listed(shuhari("components", "level", "--json"))}) < len(found)
    out = shuhari("components", "warm").out
    assert "a schedule" in out and "climbs from 0" in out
    assert shuhari("components", "reduc").code == 2


@pytest.mark.parametrize("argv", [("transfrm",), ("transform", "gaee"), ("gaee",), ("transfrm", "gae")])
def test_what_is_not_there_is_told_with_the_nearest(shuhari: Any, argv: tuple[str, ...]) -> None:
    done = shuhari("components", *argv)
    near = "gae" if "gaee" in argv else "transform"
    assert done.code == 2 and f"'{near}'" in done.err.split("did you mean")[1]


def test_ones_own_by_its_file(shuhari: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    told = listed(shuhari("components", "transform", f"{tmp_path}/mine.py:Half", "--json"))
    assert [(s["name"], s["type"], s["required"]) for s in told["settings"]] == [
        ("share", "number", True), ("names", "list of text", False)]  # fmt: skip
    assert told["doc"].startswith("Halves it.") and told["note"] and not told["module"]


def test_the_shell_completes_kinds() -> None:
    assert complete_kind("tra") == ["transform"] and complete_kind("") == sorted(registry.KINDS)
    assert summarise("transform", "gae")["summary"].startswith("Generalised advantage estimation")
