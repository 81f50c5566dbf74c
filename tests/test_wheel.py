"""What the wheel holds. `.ci/extras.py` installs it in environments of its own, and uses it in an empty folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shuhari"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert not built.returncode, built.stdout + built.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = [p for p in (PACKAGE / "desk" / "board" / "static").rglob("*") if p.is_file()]
    data += [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml"), *PACKAGE.rglob("*.json"), PACKAGE / "py.typed"]
    data += [*(PACKAGE / "methods").rglob("README.md")]
    wanted = {f"shuhari/{p.relative_to(PACKAGE).as_posix()}" for p in data}
    claims = ROOT / "results" / "claims"
    wanted |= {f"shuhari/claims_data/{p.relative_to(claims).as_posix()}" for p in claims.rglob("*.json")}
    beds = ROOT / "results" / "beds"
    wanted |= {f"shuhari/beds_data/{p.relative_to(beds).as_posix()}" for p in beds.rglob("*.json")}
    shown = ROOT / "results" / "demonstrations"
    wanted |= {f"shuhari/demonstrations_data/{p.relative_to(shown).as_posix()}" for p in shown.rglob("*.json")}
    asked = ROOT / "results" / "findings"
    wanted |= {f"shuhari/findings_data/{p.relative_to(asked).as_posix()}" for p in asked.rglob("*.json")}
    wanted |= {"shuhari/SKILL.md"}
    found = {n for n in names if ".dist-info/" not in n}
    assert found == wanted
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
