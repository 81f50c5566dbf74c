"""Make what a release uploads, and check it. Nothing is uploaded: the command that does it is printed.

    python .ci/release.py        # in the environment of `make setup`

It wants a clean tree, a version that no tag has yet, and a section of that version in CHANGELOG.md with a date; it
builds sdist and wheel into an empty dist/, checks the wheel with every extra (`extras.py`), and both by twine where
that is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def find_version() -> str:
    text = (ROOT / "src" / "shuhari" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return found[1] if found else ""


def list_problems() -> list[str]:
    """What stands in the way of a release, in words."""
    version, problems = find_version(), []
    if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", version):
        problems.append(f"__version__ is {version!r}: expected numbers, as 0.2.0 or 0.2.0rc1")
    if dirty := git("status", "--porcelain"):
        problems.append(f"the tree is not clean: {dirty.splitlines()[0].strip()} and so on: commit first")
    if f"v{version}" in git("tag").splitlines():
        problems.append(f"there is a tag v{version} already: raise __version__ in src/shuhari/__init__.py")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(version)}\b.*$", changes, re.MULTILINE)
    if heading is None:
        problems.append(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)`")
    elif not re.fullmatch(rf"## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[0]):
        problems.append(f"CHANGELOG.md says {heading[0]!r}: expected `## {version} (YYYY-MM-DD)`")
    if (dist := ROOT / "dist").is_dir() and any(dist.iterdir()):
        problems.append("dist/ holds something: remove it, so that nothing else is uploaded")
    return problems


def do(*command: str) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)


def main() -> None:
    if problems := list_problems():
        sys.exit("\n".join(f"no release: {p}" for p in problems))
    do("-m", "build", "--no-isolation")
    made = sorted((ROOT / "dist").iterdir())
    (wheel,) = (p for p in made if p.suffix == ".whl")
    do(".ci/extras.py", "--wheel", str(wheel))
    names = [str(p.relative_to(ROOT)) for p in made]
    if find_spec("twine") is not None:
        do("-m", "twine", "check", "--strict", *names)
    else:
        print("twine is not installed: the description was not checked (pip install twine)")
    version = find_version()
    print(f"\nNothing was uploaded. To release {version}:\n\n  git tag v{version} && git push origin v{version}\n"
          f"  python -m twine upload {' '.join(names)}")  # fmt: skip


if __name__ == "__main__":
    main()
