"""Lays out what the site is made of: `python docs/stage.py FOLDER`.

The pages are those that a reader of the repository has: README.md, all of docs/, and whatever they link to. They are
copied in the layout of the repository, so one relative link serves both, and a link to nothing fails here. Left out is
the building of the site, which is the generator's (mkdocs.yml).

On the way `<!-- ::: NAME -->`, which other readers do not see, becomes `::: NAME`, which mkdocstrings writes out; each
method gets a page (`methods.py`), and the navigation of mkdocs.yml those pages, in `FOLDER/../mkdocs.yml`.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs"))
methods = import_module("methods")  # beside this file
MARK = "  - Methods:\n"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
OF_METHOD = re.compile(r"\]\(((?:\.\./)?)src/shuhari/methods/(\w+)/(\w+)/README\.md")  # a link to its page
WRITTEN_OUT = re.compile(r"^<!-- (::: [\w.]+) -->$", re.MULTILINE)


def find_links(page: str) -> list[str]:
    """The files that a page points to, as it writes them."""
    return LINK.findall(CODE.sub("", page))


def gather(root: Path, starts: Iterable[Path]) -> dict[Path, Path]:
    """file -> its place below the folder, of the pages `starts` and of all that they lead to. SystemExit where a link
    leads out of `root`, or to nothing."""
    found: dict[Path, Path] = {}
    waiting = list(starts)
    while waiting:
        page = waiting.pop()
        if page in found:
            continue
        found[page] = page.relative_to(root)
        if page.suffix != ".md":
            continue
        for link in find_links(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if not target.is_file() or root not in target.parents:
                raise SystemExit(f"{found[page]} links to {link}: expected a file of the repository")
            if not OF_METHOD.match(f"]({link}"):  # its page is made of it
                waiting.append(target)
    return found


def main(folder: Path) -> None:
    """Makes the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for file, place in gather(ROOT, (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))).items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = OF_METHOD.sub(r"](\1methods/\2/\3.md", file.read_text(encoding="utf-8"))
            target.write_text(WRITTEN_OUT.sub(r"\1", text), encoding="utf-8")
        else:
            shutil.copyfile(file, target)
    write_methods(folder)


def write_methods(folder: Path) -> None:
    """The pages of methods, what they show, and the navigation with them."""
    pages = methods.read_pages(ROOT)
    texts = {f"{page.name}.md": methods.write_page(page, ROOT) for page in pages}
    texts[methods.LIST] = methods.write_list(pages, methods.read_troubles(ROOT))
    for name, text in texts.items():
        target = folder / "methods" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        for link in find_links(text):
            file = (target.parent / link).resolve().relative_to(folder.resolve())
            if file.suffix == ".png":
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, folder / file)
            elif not (folder / file).is_file() and f"{file.relative_to('methods')}" not in texts:
                raise SystemExit(f"methods/{name} links to {link}: expected a page of the site")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, mark, tail = text.partition(MARK)
    if not mark:
        raise SystemExit(f"mkdocs.yml has no line {MARK.strip()!r} in its navigation")
    lines = "\n".join(methods.list_navigation(pages))
    below = {"docs_dir: build/pages": f"docs_dir: {folder.name}", "site_dir: build/site": "site_dir: site",
             "paths: [src]": "paths: [../src]"}  # fmt: skip
    whole = f"{head}{mark}{lines}\n{tail}"
    for old, new in below.items():
        whole = whole.replace(old, new)
    (folder.parent / "mkdocs.yml").write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
