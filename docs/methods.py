"""The site's page of each method: its README, what was measured of it, its picture, its recipe, its components.

`docs/stage.py` writes them below `methods/`, with a list by family and one by trouble. They are made from the files of
`src/shuhari/methods` and `results/claims` alone, so that the site needs nothing installed. Links are those of the site.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAMILIES = {
    "rlvr": "Rewards that can be verified: losses, credit, exploration, group sizes",
    "curriculum": "What is trained on next",
    "data": "Demonstrations, preferences and recorded answers beside RL",
    "preference": "Preferences: losses of pairs, games, several tastes",
    "reward": "Rewards that are learnt: models of steps, judges, monitors, labels that arrive late",
    "control": "Control: critics, costs, starts, advice",
    "offline": "Recorded data of control",
    "diffusion": "Policies that denoise: flows, diffusion, masked language models",
    "theory": "Tables and linear learners, with exact values",
    "analysis": "What training does to weights and skills, and questions that any run can be asked",
    "engine": "How rollouts are collected",
}
REGISTERED = re.compile(r'^@register\("(\w+)", "([\w-]+)"', re.MULTILINE)
OTHER = re.compile(r"\]\(\.\./((?:\.\./\w+/)?)(\w+)/README\.md")  # ](../cpo/README.md, ](../../control/cpo/README.md
LIST = "README.md"


@dataclass(frozen=True)
class Page:
    """A method: its `name` (`rlvr/clip_cov`), its folder, its tables, and the stored result of its claim or of its
    demonstration, if any. Of an analysis, `recipe` has what its `finding.toml` says, and `found` what was found."""

    name: str
    folder: Path
    recipe: Mapping[str, Any]
    claim: Mapping[str, Any]
    result: Mapping[str, Any] | None
    shown: Mapping[str, Any] | None = None
    found: Mapping[str, Any] | None = None

    @property
    def file(self) -> Path:
        """What it is stated by."""
        recipe = self.folder / "recipe.toml"
        return recipe if recipe.is_file() else self.folder / "finding.toml"

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"

    @property
    def title(self) -> str:
        """Its first heading, or the summary of its recipe."""
        text = self.readme.read_text(encoding="utf-8") if self.readme.is_file() else ""
        heading = re.match(r"# (.+)", text)
        return heading[1].strip() if heading else str(self.recipe.get("summary", self.name))


def read_pages(root: Path) -> list[Page]:
    """Every method and analysis of a checkout, by family and name."""
    pages = []
    for file in (root / "src/shuhari/methods").glob("*/*/finding.toml"):
        if not file.with_name("recipe.toml").is_file():
            name = f"{file.parent.parent.name}/{file.parent.name}"
            kept = root / "results/findings" / f"{name}.json"
            found = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None
            table = _read_toml(file)
            about = {"summary": table["says"], "paper": table.get("paper", {})}
            pages.append(Page(name, file.parent, about, {}, None, found=found))
    for file in (root / "src/shuhari/methods").glob("*/*/recipe.toml"):
        name = f"{file.parent.parent.name}/{file.parent.name}"
        kept, claim = root / "results/claims" / f"{name}.json", file.with_name("claim.toml")
        result = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None
        other = root / "results/demonstrations" / f"{name}.json"
        shown = json.loads(other.read_text(encoding="utf-8")) if other.is_file() else None
        stated = _read_toml(claim) if claim.is_file() else {}
        pages.append(Page(name, file.parent, _read_toml(file), stated, result, shown))
    order = list(FAMILIES)
    return sorted(pages, key=lambda p: (order.index(p.name.partition("/")[0]), p.name))


def _read_toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def write_page(page: Page, root: Path) -> str:
    """The text of a method's page. SystemExit if its README links to a file that is no other method's README: pages
    stand elsewhere on the site."""
    if page.readme.is_file():
        text = OTHER.sub(r"](\1\2.md", page.readme.read_text(encoding="utf-8").rstrip())
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
            if not link.endswith(".md") or "README" in link:
                raise SystemExit(f"{page.readme} links to {link}: expected another method's README.md, or https://...")
    else:
        text = f"# {page.recipe.get('summary', page.name)}"
    parts = [text, *_describe_result(page, root), *_list_components(page), *_show_recipe(page)]
    return "\n\n".join(parts) + "\n"


def _describe_result(page: Page, root: Path) -> Iterator[str]:
    yield "## What was measured here"
    if page.shown is not None:
        yield from _describe_demonstration(page, page.shown, root)
        return
    if page.found is not None:
        yield from _describe_finding(page, page.found, root)
        return
    if page.result is None:
        yield "Nothing yet." + (f" What is to be measured: {page.claim['says']}" if "says" in page.claim else "")
        return
    found = page.result["headline"]
    stale = f" It is out of date: {page.result['stale']}." if page.result.get("stale") else ""
    open_guard = " What may not be lost for it is neither shown to be kept nor lost."
    guard = open_guard if page.result["guard"] == "open" else ""
    yield f"> {page.result['says']}"
    of = f" of `{found['metric']}`" if found.get("metric") else ""
    numbers = "no effect could be measured"
    if found.get("effect") is not None:
        interval = f"[{found['low']:.3g}, {found['high']:.3g}] at {found['level']:.1%}"
        numbers = f"effect{of} {found['effect']:.3g} {interval}, margin {found['margin']:.3g}, {found['n']} seeds"
    known = f" Known against the comparison: {page.result['objection']}" if page.result.get("objection") else ""
    yield (
        f"**{page.result['verdict']}**: {numbers}.{guard}{stale}{known} A small stand-in on two CPU cores neither "
        f"proves nor refutes a paper; [how a verdict comes about](../../docs/claims.md), "
        f"[all values](../../docs/scoreboard.md#{page.name.replace('/', '')})."
    )
    if (root / "results/plots" / f"{page.name}.png").is_file():
        yield f"![The arms of the comparison over what they spent](../../results/plots/{page.name}.png)"


def _describe_demonstration(page: Page, shown: Mapping[str, Any], root: Path) -> Iterator[str]:
    def join(values: Iterable[float]) -> str:
        return ", ".join(f"{value:.3g}" for value in values)

    yield f"> {shown['says']}"
    yield (
        f"A demonstration on {len(shown['seeds'])} seeds, with and without the method; it has no rivals and no "
        f"verdict, because {shown['why']}."
    )
    yield (
        f"| | with | without |\n|---|---|---|\n"
        f"| `{shown['quantity']}` | {join(shown['with']['values'])} | {join(shown['without']['values'])} |\n"
        f"| dose, `{shown['dose']['metric']}` | {join(shown['dose']['values'])} | |"
    )
    if (root / "results/plots" / f"{page.name}.png").is_file():
        yield f"![With and without the method, over what was spent](../../results/plots/{page.name}.png)"
    yield f"Made by `shuhari demonstrate {page.name}`."


def _describe_finding(page: Page, found: Mapping[str, Any], root: Path) -> Iterator[str]:
    def join(values: Iterable[float | None]) -> str:
        return ", ".join("-" if value is None else f"{value:.3g}" for value in values)

    yield f"> {found['says']}"
    rows = [f"| {key} | {join(x['values'])} | {join(x['null']) if any(v is not None for v in x['null']) else ''} | "
            f"{x['says']} |" for key, x in found["numbers"].items()]  # fmt: skip
    yield "\n".join(["| number | each seed | null | what it is |", "|---|---|---|---|", *rows])
    if found["null"]:
        yield f"Null: {found['null']}."
    if (root / "results/plots" / f"{page.name}.png").is_file():
        yield f"![What was found on the first seed](../../results/plots/{page.name}.png)"
    yield f"Made by `shuhari analyze {page.name} --packaged`, on small runs of the library's own."


def _list_components(page: Page) -> Iterator[str]:
    own = [
        (kind, name)
        for file in sorted(page.folder.glob("*.py"))
        for kind, name in REGISTERED.findall(file.read_text(encoding="utf-8"))
    ]
    if own:
        yield "## All settings of its components"
        yield "\n".join(f"- [{kind} `{name}`](../../docs/settings.md#{kind}-{name})" for kind, name in own)


def _show_recipe(page: Page) -> Iterator[str]:
    whole = page.file.name == "recipe.toml"
    yield "## The recipe" if whole else "## What is run"
    yield f"```toml\n{page.file.read_text(encoding='utf-8').rstrip()}\n```"
    if not whole:
        yield f"The files: `src/shuhari/methods/{page.name}/`."
        return
    yield f"The files: `src/shuhari/methods/{page.name}/`. What it resolves to: `shuhari train {page.name} --dry-run`."


def write_list(pages: Iterable[Page], troubles: Mapping[str, str]) -> str:
    """The list of all methods, by family and by trouble. `troubles`: each with how it shows."""
    pages = list(pages)
    out = ["# Methods", "", "Each page has what a method does, when to use it, what differs from the authors' release, "
           "what was measured, and the command that lays it over a recipe of yours.", ""]  # fmt: skip
    out += ["## By family", ""]
    for family, what in FAMILIES.items():
        out += [f"### {what}", ""]
        out += [f"- [{p.title}]({p.name}.md) `{p.name}`" for p in pages if p.name.startswith(f"{family}/")] + [""]
    out += ["## By trouble", ""]
    for trouble, shows in troubles.items():
        helped = [p for p in pages if trouble in p.recipe.get("paper", {}).get("helps", ())]
        if helped:
            out += [f"### {trouble.capitalize()}", "", f"{shows[0].upper()}{shows[1:]}.", ""]
            out += [f"- [{p.title}]({p.name}.md) `{p.name}`" for p in helped] + [""]
    return "\n".join(out)


def read_troubles(root: Path) -> dict[str, str]:
    """The troubles that recipes may name, with how each shows, out of the library's source."""
    text = (root / "src/shuhari/config/library.py").read_text(encoding="utf-8")
    table = text.partition("TROUBLES = {")[2].partition("\n}")[0]
    return dict(re.findall(r'^    "([^"]+)": "([^"]+)",', table, re.MULTILINE))


def list_navigation(pages: Iterable[Page]) -> list[str]:
    """The lines of the navigation, as YAML below `- Methods:`."""
    lines = [f"      - All methods: methods/{LIST}"]
    family = ""
    for page in pages:
        own = page.name.partition("/")[0]
        if own != family:
            family = own
            lines.append(f"      - {FAMILIES[own].partition(':')[0]}:")
        lines.append(f"          - {json.dumps(page.title.partition(':')[0])}: methods/{page.name}.md")
    return lines
