"""A folder of wheels of what the library needs and a machine with a GPU image lacks, so that it wants no network there.

    python benchmarks/gpu/wheels.py                 fills benchmarks/gpu/wheels/ and prints what is in it
    python benchmarks/gpu/wheels.py matplotlib      with these packages too, and what they need

What is wanted: the dependencies of pyproject.toml and those of the extras named in EXTRAS, less what is on such a
machine (PRESENT), and what the wheels themselves need, as they say. They are for Linux on x86-64 and one version of
Python. `run.py` installs them beside itself where they are missing."""

from __future__ import annotations

import argparse
import email
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "wheels"
LIMIT = 28 * 2**20  # bytes of all wheels
PYTHON = "3.12"
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (34, 31, 28, 27, 26, 24, 17, 12, 5)] + ["manylinux2014_x86_64"]
EXTRAS = ("gguf",)
# what an image with torch, transformers, peft, scipy and typer has; matplotlib is only drawn with, and done without
PRESENT = frozenset(
    "torch transformers numpy scipy safetensors tokenizers peft accelerate typer rich huggingface-hub hf-xet tqdm "
    "pyyaml packaging filelock fsspec jinja2 markupsafe sympy mpmath networkx regex setuptools typing-extensions click "
    "shellingham pygments markdown-it-py mdurl psutil httpx httpcore h11 anyio certifi annotated-doc triton "
    "matplotlib".split()
)


def wanted(more: list[str]) -> list[Requirement]:
    """What pyproject.toml asks for and PRESENT lacks, and `more`."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in EXTRAS:
        asked += project["optional-dependencies"][extra]
    found = [r for r in map(Requirement, asked) if canonicalize_name(r.name) not in PRESENT]
    return [*found, *map(Requirement, more)]


def needs(wheel: Path) -> list[Requirement]:
    """What a wheel says that it needs on that machine, extras left out."""
    with zipfile.ZipFile(wheel) as zipped:
        name = next(n for n in zipped.namelist() if n.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(zipped.read(name)).get_all("Requires-Dist") or []
    there = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux", "extra": "",
             "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
             "platform_python_implementation": "CPython", "os_name": "posix"}  # fmt: skip
    return [r for r in map(Requirement, told) if r.marker is None or r.marker.evaluate(there)]


def fetch(requirement: Requirement, folder: Path) -> list[Path]:
    """Download the wheel of a package; the files that are new."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--python-version", PYTHON, "--implementation", "cp", "--dest", str(folder)]  # fmt: skip
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, f"{requirement.name}{requirement.specifier}"], check=True)
    return sorted(set(folder.glob("*.whl")) - before)


def fill(folder: Path, more: list[str]) -> list[Path]:
    """Download all that is wanted, and what that needs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked = {str(canonicalize_name(Requirement(m).name)) for m in more}
    due, known = wanted(more), set(PRESENT - asked)
    while due:
        one = due.pop(0)
        if (name := canonicalize_name(one.name)) in known:
            continue
        known.add(name)
        for wheel in fetch(one, folder):
            due += needs(wheel)
    return sorted(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("more", nargs="*")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    made = fill(args.folder, args.more)
    for wheel in made:
        print(f"{wheel.stat().st_size / 2**20:6.2f} MiB  {wheel.name}")
    size = sum(wheel.stat().st_size for wheel in made)
    print(f"{size / 2**20:6.2f} MiB  {len(made)} wheels in {args.folder}")
    if size > LIMIT:
        raise SystemExit(f"more than {LIMIT / 2**20:.0f} MiB: leave something out")


if __name__ == "__main__":
    main()
