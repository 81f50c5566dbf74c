"""One run: what it is, its recipe and what that changes, what went wrong, and what its numbers say is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.numbers import Steps
from shuhari.store import Run, StoreError
from shuhari.store.files import read_file
from shuhari.store.listing import name_tasks, read_tags

LONG = 200_000  # characters of a recipe
CUT = 2000  # of a message
MOST = 500  # lines of a list
LAST = ("By step, the last first", {"order": "step", "down": "true"})
RATIO = ("By step, the last first", {"order": "step", "down": "true", "colour": "ratio"})
SHOWN = MappingProxyType({  # rule of the diagnosis -> the rollouts that show it, as a query of their page
    "length-drift": ("The longest", {"order": "length", "down": "true"}),
    "truncation": ("Those that were cut", {"status": "truncated", "order": "length", "down": "true"}),
    "answers-too-long": ("The longest", {"order": "length", "down": "true"}),
    "groups-alike": ("By step", {"order": "step", "down": "true"}),
    "no-group-differs": ("By step", {"order": "step", "down": "true"}),
    "starts-at-zero": ("By step", {"order": "step"}),
    "starts-solved": ("By step", {"order": "step"}),
    "reward-constant": ("The best", {"order": "best", "down": "true"}),
    "return-constant": ("The best", {"order": "best", "down": "true"}),
    "entropy-collapsed": LAST,
    "entropy-rises": ("The worst", {"order": "worst"}),
    "stale": ("By step, the last first", {"order": "step", "down": "true", "colour": "version"}),
    "rollouts-fail": ("The worst", {"order": "worst"}),
    "ungraded": LAST,
    "graders-fail": ("The worst", {"order": "worst"}),
    "filters-reject": LAST,
    "reward-not-finite": LAST,
    "return-not-finite": LAST,
    "loss-not-finite": LAST,
    "gradient-not-finite": LAST,
    "gradient-zero": LAST,
    "engine-differs": RATIO,
    "engine-uncorrected": RATIO,
    "engine-rounds": RATIO,
    "clips-too-much": RATIO,
    "moves-too-far": RATIO,
    "moves-in-leaps": RATIO,
    "critic-explains-nothing": LAST,
})  # fmt: skip
BEST = ("The best rewarded, where a reward is gamed", {"order": "best", "down": "true"})


def show_run(runs: Catalogue, run: str) -> dict[str, Any]:
    """What is told at the top of a run's page: {name, path, status, note, step, total, recipe, summary, task, seed,
    seconds, spent, made_with, tags, ends: {heads, rows}, data, has}; has: which of its pages there are."""
    from shuhari.desk.ends import tabulate_ends

    path = runs.find(run)
    opened = Run(path)
    with opened._open() as db:
        last = db.execute("select wall from steps order by step desc limit 1").fetchone()
        rollouts = db.execute("select 1 from rollouts limit 1").fetchone() is not None
        tables = {name for (name,) in db.execute("select name from sqlite_master")}
        problems = "problems" in tables and db.execute("select 1 from problems limit 1").fetchone() is not None
    summary, fault, recipe = _read(opened)
    status = opened.status
    heads, rows = tabulate_ends(summary)
    return {
        "name": str(path.relative_to(runs.root)), "path": str(path), "status": status, "fault": fault,
        "note": str(opened.get("failed") or "")[:CUT] if status == "failed" else "",
        "step": opened.step, "total": opened.get("total") or recipe.get("steps"), "recipe": str(recipe.get("name", "")),
        "summary": str(recipe.get("summary", ""))[:CUT], "task": name_tasks(recipe), "seed": recipe.get("seed", 0),
        "init": str(opened.get("init") or ""), "seconds": last[0] if last else None, "spent": summary.get("spent", {}),
        "made_with": opened.get("made_with") or {}, "tags": read_tags(path), "ends": {"heads": heads, "rows": rows},
        "data": opened.get("data") or {}, "repeatable": summary.get("repeatable"),
        "has": {"rollouts": rollouts, "curriculum": problems, "profile": (path / "profile.json").is_file()},
    }  # fmt: skip


def show_recipe(runs: Catalogue, run: str) -> dict[str, Any]:
    """{text, parents}: the resolved recipe as it is stored; parents: the recipe of the library that has its name, then
    what that extends, or is laid over, each with what is another here: {name, how, changes: [{path, here, there}],
    problem}."""
    path = runs.find(run)
    text, parents = _read_text(path), [*compare_recipes(path, str(Run(path).recipe.get("name", "")))]
    return {"text": text[:LONG], "cut": len(text) > LONG, "parents": parents}


def compare_recipes(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """What differs in a run's recipe from that of its `name` in the library, then from what that extends: see
    `show_recipe`."""
    from shuhari.config.recipe import RecipeError, dump, find_differences, load, restore_names

    text = _read_text(path)
    for parent, how in _list_parents(name):
        entry: dict[str, Any] = {"name": parent, "how": how, "changes": [], "problem": ""}
        try:
            there = dump(restore_names(load(parent), text, path)[0])
            changed = [(key, *pair) for key, pair in find_differences(there, text).items() if key != "name"]
            entry["changes"] = [{"path": k, "here": _tell(h), "there": _tell(t)} for k, t, h in changed[:MOST]]
        except (RecipeError, ValueError) as error:
            entry["problem"] = str(error)[:CUT]
        yield entry


def _read_text(path: Path) -> str:
    """The recipe of a run as it was resolved."""
    try:
        return read_file(path / "recipe.toml").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path / 'recipe.toml'}: {error}") from None


def show_findings(runs: Catalogue, run: str) -> dict[str, Any] | None:
    """{step, rules, findings, healthy, sure} of `shuhari diagnose`, each finding with what it says, and `shown`:
    [{text, query}] of the rollouts that show it; `raised`: the step at which a run that trained told it as an alarm,
    None where it did not. healthy: what is said where nothing was found, and whether it is `sure`. Null while the steps
    are being read."""
    path = runs.find(run)
    return runs.numbers.of(path).make("findings", lambda steps: judge(steps, Run(path), run))


def judge(steps: Steps, opened: Run, run: str) -> dict[str, Any]:
    """What the rules find in the steps of a run."""
    from shuhari.lab.diagnosis import FINE, RULES, describe_health, diagnose

    columns, (_, _, recipe) = steps.to_lists(), _read(opened)
    raised = _find_alarms(columns, recipe)
    findings = []
    for f in diagnose(columns, recipe, opened.get("began", {})):
        what, seen, helps = f.list_lines()
        findings.append({**f.to_json(), "what": what, "seen": seen, "helps": helps, "alarm": f.rule.at_once,
                         "raised": raised.get((f.stage, f.rule.name)), "shown": _list_shown(f, run)})  # fmt: skip
    healthy = "" if findings or not columns["step"] else describe_health(columns, recipe)
    return {"step": steps.last, "rules": len(RULES), "findings": findings, "healthy": healthy, "sure": healthy == FINE}


def list_events(runs: Catalogue, run: str) -> dict[str, Any]:
    """{kinds, problems, events}: how many events of each kind; what went wrong, [{text, count, first, last}], the last
    first; the last events of other kinds, whichever these are."""
    with (opened := Run(runs.find(run)))._open() as db:
        kinds = dict(db.execute("select kind, count(*) from events group by kind limit 200").fetchall())
    total, found = opened.count_events("problem", MOST)
    problems = [{"text": str(row.pop("data"))[:CUT], **row} for row in found]
    others = [{**e, "data": _tell(e["data"])} for e in opened.events(without="problem", last=MOST)]
    return {"kinds": kinds, "total": total, "problems": problems, "events": others}


def show_profile(runs: Catalogue, run: str) -> dict[str, Any] | None:
    """{heads, rows, lines} of what `train --profile` has measured; null where it was not."""
    from shuhari.desk.profile_report import HEADS, read, table_lines, table_rows

    path = runs.find(run)
    try:
        profile = read(path)
        return profile and {"heads": HEADS, "rows": table_rows(profile), "lines": table_lines(profile)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path / 'profile.json'} is no profile ({error})") from None


def _read(opened: Run) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Its summary, what is wrong with that or with the recipe, and the recipe; empty where they cannot be read, so that
    the rest is still told."""
    summary, recipe, faults = dict[str, Any](), dict[str, Any](), []
    try:
        summary = opened.summary or {}
    except StoreError as error:
        faults.append(str(error))
    try:
        recipe = opened.recipe
    except StoreError as error:
        faults.append(str(error))
    return summary, "; ".join(faults)[:CUT], recipe


def _list_parents(name: str) -> list[tuple[str, str]]:
    """(recipe of the library, what it is to one of that name), nearest first; of methods that were laid over each other
    (`a/x+y`) the first."""
    from shuhari.config.files import read_chain
    from shuhari.config.library import find_recipe
    from shuhari.config.recipe import RecipeError
    from shuhari.kernel.plugins import PluginError

    first = name if _is_there(name, find_recipe) else name.partition("+")[0]
    if not _is_there(first, find_recipe):
        return []
    out = [(first, "of this name" if first == name else "the first of its methods")]
    try:
        for below, table in read_chain(first):
            if below != first:
                out.append((below, f"extended by {out[-1][0]}"))
            if isinstance(table.get("on"), str):
                out.append((table["on"], f"what {below} is laid over"))
    except (RecipeError, PluginError):
        pass
    return [pair for pair in dict(out).items() if _is_there(pair[0], find_recipe)]


def _is_there(name: str, find: Any) -> bool:
    """Whether the library has a recipe of a name; one of a file's path is never looked for."""
    parts = name.split("/")
    return len(parts) > 1 and all(p and p not in (".", "..") for p in parts) and find(name) is not None


def _find_alarms(columns: Mapping[str, list[Any]], recipe: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """(stage, rule) -> the step at which `shuhari train` told it."""
    from shuhari.lab.diagnosis import Watch
    from shuhari.lab.diagnosis.watch import ASKED

    watch, out = Watch(recipe), dict[tuple[str, str], int]()
    for _, group in groupby(range(len(columns["step"])), key=lambda i: columns["stage"][i]):
        rows = list(group)
        for i in [*rows[: max(ASKED)], *rows[max(ASKED) :][-1:]]:
            report = {name: values[i] for name, values in columns.items() if values[i] is not None}
            for f in watch.add(report):
                out[f.stage, f.rule.name] = columns["step"][i]
    return out


def _list_shown(finding: Any, run: str) -> list[dict[str, Any]]:
    rule = finding.rule
    shown = [SHOWN[rule.name]] if rule.name in SHOWN else []
    if rule.reads.startswith("reward/") or rule.name in ("length-drift", "entropy-collapsed"):
        shown.append(BEST)
    queries = dict.fromkeys((text, tuple(query.items())) for text, query in shown)
    return [{"text": text, "query": {"run": run, **dict(query)}} for text, query in queries]


def _tell(value: Any) -> str:
    """A setting, or the data of an event, in a line."""
    return "not set" if value is None else (value if isinstance(value, str) else repr(value))[:CUT]

