"""The site has every page of the documentation, once, and each link leads somewhere: without its generator."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_stage", ROOT / "docs" / "stage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once(stage: ModuleType, tmp_path: Path) -> None:
    stage.main(tmp_path / "pages")
    pages = sorted(str(p.relative_to(tmp_path / "pages")) for p in (tmp_path / "pages").rglob("*.md"))
    nav = yaml.safe_load((tmp_path / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert pages == sorted(list_pages(nav))


def list_pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of a navigation, groups within groups."""
    for entry in nav:
        for inner in entry.values():
            yield from [inner] if isinstance(inner, str) else list_pages(inner)


def test_a_link_to_nothing_is_refused(stage: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[b](b.md#c), `[no](link.md)`\n```\n[nor](this.md)\n```\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"a\.md links to b\.md"):
        stage.gather(tmp_path, [tmp_path / "a.md"])
    (tmp_path / "b.md").write_text("[a](a.md)", encoding="utf-8")
    assert {*stage.gather(tmp_path, [tmp_path / "a.md"])} == {tmp_path / "a.md", tmp_path / "b.md"}


def test_a_link_to_a_heading_leads_to_one(stage: ModuleType, tmp_path: Path) -> None:
    stage.main(tmp_path / "pages")
    pages = {path.resolve(): stage.CODE.sub(_keep_inline, path.read_text(encoding="utf-8"))
             for path in (tmp_path / "pages").rglob("*.md")}  # fmt: skip
    headings = {path: {*map(_shorten, re.findall("^#+ (.+)$", text, re.MULTILINE)), *re.findall(r'id="([^"]+)"', text)}
                for path, text in pages.items()}  # fmt: skip
    links = [(path, page, anchor) for path, text in pages.items()
             for page, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*)#([^)\s]+)\)", text)]  # fmt: skip
    assert len(links) > 100
    broken = [(path.name, page, anchor) for path, page, anchor in links
              if anchor not in headings.get((path.parent / page).resolve() if page else path, set())]  # fmt: skip
    assert not broken
    references = [(path.name, found) for path, text in pages.items() for found in re.findall(r"\[\w+\]\[\w+\]", text)]
    assert not references  # the generator reads it as a link


def _keep_inline(code: re.Match[str]) -> str:
    """Code in a heading is part of its name; anything else in code is no heading and no link."""
    return "" if code[0].startswith("```") else re.sub(r"[\[\]#]", "", code[0])


def _shorten(heading: str) -> str:
    """The name of a heading in a link, as the generator makes it."""
    bare = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
    return re.sub(r"[\s]+", "-", bare)


def test_the_name_of_a_method_leads_to_its_page(stage: ModuleType, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[`(\S+)`\]\((\S+)\)", text, re.MULTILINE)
    methods = {f"{p.parent.parent.name}/{p.parent.name}" for p in (ROOT / "src/shuhari/methods").glob("*/*/README.md")}
    assert {name for name, _ in linked} == methods
    assert not re.search(r"^\| `(?!baselines/|pretrained/|reproduce/)", text, re.MULTILINE)
    assert all((ROOT / "docs" / link).resolve().is_file() for _, link in linked)  # in the repository
    stage.main(tmp_path / "pages")
    built = tmp_path / "pages" / "docs" / "papers.md"
    there = re.findall(r"^\| \[`(\S+)`\]\((\S+)\)", built.read_text(encoding="utf-8"), re.MULTILINE)
    for name, link in there:
        assert (built.parent / link).resolve() == tmp_path / "pages" / "methods" / f"{name}.md"
        assert (built.parent / link).is_file()
    assert len(there) == len(linked)


def test_what_the_site_writes_out_is_hidden_elsewhere(stage: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert "<!-- ::: shuhari.train -->" in page and not re.search("^:::", page, re.MULTILINE)
    assert re.search("^::: shuhari.train$", stage.WRITTEN_OUT.sub(r"\1", page), re.MULTILINE)


def test_the_modules_that_are_public_are_in_the_reference() -> None:
    public = (ROOT / "docs" / "public.md").read_text(encoding="utf-8").partition("Not public")[0]
    listed = {*re.findall(r"`(shuhari\.[a-z.]+)`", "".join(re.findall(r"^\|.*", public, re.MULTILINE)))}
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    functions = {"shuhari.train", "shuhari.recipes"}  # named there, and no modules
    assert len(listed) > 10 and not {m for m in listed - functions if f"## {m}\n" not in page}
