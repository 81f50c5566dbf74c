"""The wheel is the product: it is built, installed in an environment of its own, and used in an empty folder.

The environment sees this one's packages through a `.pth` file, so nothing is downloaded; a `.pth` file inside those
is not followed, so an editable install of shuhari stays out of sight.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shuhari"


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command; a failure shows both of its streams."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@dataclass(frozen=True)
class Fresh:
    """An environment that holds the wheel, and a folder that held nothing before the tests."""

    programs: Path
    folder: Path

    def __call__(self, program: str, *arguments: str) -> str:
        return run(self.programs / program, *arguments, cwd=self.folder)


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home / "env", cwd=home)
    new = Fresh(home / "env" / "bin", home / "empty")
    new.folder.mkdir()
    pip = (sys.executable, "-m", "pip", "--python", new.programs / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    here = sysconfig.get_paths()
    site = new("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "outer.pth").write_text("\n".join(dict.fromkeys([here["purelib"], here["platlib"]])))
    return new


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml"), *PACKAGE.rglob("*.json"), PACKAGE / "py.typed"]
    wanted = {f"shuhari/{p.relative_to(PACKAGE).as_posix()}" for p in data}
    claims = ROOT / "results" / "claims"
    wanted |= {f"shuhari/claims_data/{p.relative_to(claims).as_posix()}" for p in claims.rglob("*.json")}
    beds = ROOT / "results" / "beds"
    wanted |= {f"shuhari/beds_data/{p.relative_to(beds).as_posix()}" for p in beds.rglob("*.json")}
    found = {n for n in names if ".dist-info/" not in n}
    assert found == wanted
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)


def test_the_installed_package_is_the_wheels(fresh: Fresh) -> None:
    where = Path(fresh("python", "-c", "import shuhari; print(shuhari.__file__)").strip())
    assert where.is_relative_to(fresh.programs.parent) and not where.is_relative_to(PACKAGE)


def test_methods_are_listed_from_an_empty_folder(fresh: Fresh) -> None:
    assert "baselines/ppo_cartpole" in fresh("shuhari", "methods")
    methods = json.loads(fresh("shuhari", "methods", "--json"))
    recipes = PACKAGE / "recipes"
    assert {m["name"] for m in methods} == {
        p.relative_to(recipes).with_suffix("").as_posix() for p in recipes.rglob("*.toml")
    }
    assert all({"name", "family", "paper", "summary", "verdict"} <= set(m) for m in methods)


def test_two_steps_of_training_in_an_empty_folder(fresh: Fresh) -> None:
    fresh("shuhari", "train", "baselines/ppo_cartpole", "--set", "steps=2")
    (run_folder,) = (fresh.folder / "runs").iterdir()
    assert {"recipe.toml", "run.sqlite", "summary.json"} <= {p.name for p in run_folder.iterdir()}
