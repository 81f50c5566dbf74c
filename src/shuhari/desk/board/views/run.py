"""One run: its facts, its recipe and the changes to it, its problems, and the findings about its numbers."""

from __future__ import annotations

import tomllib
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
    """Return the head of a run's page: {name, path, status, note, step, total, recipe, summary, task, seed, seconds,
    spent, made_with, tags, ends: {heads, rows}, data, has}; has: which further pages there are."""
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
    """Return {text, parents}: the stored, resolved recipe; parents: the packaged recipe of its name, then the recipes
    that this one extends or is laid over, each with the differences: {name, how, changes: [{path, here, there,
    says: what the setting is}], problem}."""
    path = runs.find(run)
    text, parents = _read_text(path), [*compare_recipes(path, str(Run(path).recipe.get("name", "")))]
    return {"text": text[:LONG], "cut": len(text) > LONG, "parents": parents}


def compare_recipes(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the differences between a run's recipe and the packaged one of its `name`, then the recipes below that: see
    `show_recipe`."""
    from shuhari.config.overlay import split_path
    from shuhari.config.recipe import RecipeError, dump, find_differences, load, restore_names
    from shuhari.desk.sentences import find_sentence

    text = _read_text(path)
    for parent, how in _list_parents(name):
        entry: dict[str, Any] = {"name": parent, "how": how, "changes": [], "problem": ""}
        try:
            there = dump(restore_names(load(parent), text, path)[0])
            changed = [(key, *pair) for key, pair in find_differences(there, text).items() if key != "name"]
            tree = tomllib.loads(text)
            stages = tree.get("stage")  # of a file that may be anybody's
            listed = [stage for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
            tree["stage"] = {str(stage.get("name")): stage for stage in listed}
            entry["changes"] = [
                {"path": k, "here": _to_line(h), "there": _to_line(t), "says": find_sentence(tree, split_path(k))}
                for k, t, h in changed[:MOST]
            ]
        except (RecipeError, ValueError) as error:
            entry["problem"] = str(error)[:CUT]
        yield entry


def _read_text(path: Path) -> str:
    """Return the resolved recipe of a run as text."""
    try:
        return read_file(path / "recipe.toml").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path / 'recipe.toml'}: {error}") from None


def show_findings(runs: Catalogue, run: str) -> dict[str, Any] | None:
    """Return {step, rules, findings, healthy, sure} of `shuhari diagnose`. Each finding has its text, `shown`: [{text,
    query}] of the rollouts that show it, and `raised`: the step at which training raised it as an alarm, None if it did
    not. healthy: the text if nothing was found, and whether it is `sure`. Null while the steps are being read."""
    path = runs.find(run)
    return runs.numbers.of(path).make("findings", lambda steps: judge(steps, Run(path), run))


def judge(steps: Steps, opened: Run, run: str) -> dict[str, Any]:
    """Diagnose the steps of a run."""
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
    """Return {kinds, total, problems, events}. kinds: the number of events of each kind; problems: the latest
    [{text, count, first, last}], newest first, of `total`; events: the latest of all other kinds."""
    with (opened := Run(runs.find(run)))._open() as db:
        kinds = dict(db.execute("select kind, count(*) from events group by kind limit 200").fetchall())
    total, found = opened.count_events("problem", MOST)
    problems = [{"text": str(row.pop("data"))[:CUT], **row} for row in found]
    others = [{**e, "data": _to_line(e["data"])} for e in opened.events(without="problem", last=MOST)]
    return {"kinds": kinds, "total": total, "problems": problems, "events": others}


def show_profile(runs: Catalogue, run: str) -> dict[str, Any] | None:
    """Return {heads, rows, lines} of the profile by `train --profile`; null if there is none."""
    from shuhari.desk.profile_report import HEADS, read, table_lines, table_rows

    path = runs.find(run)
    try:
        profile = read(path)
        return profile and {"heads": HEADS, "rows": table_rows(profile), "lines": table_lines(profile)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path / 'profile.json'} is not a profile ({error})") from None


def _read(opened: Run) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return a run's summary, faults in it or in the recipe, and the recipe; empty if they cannot be read, so that the
    rest can still be shown."""
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
    """Return (packaged recipe, its relation to the one of that name), nearest first; for combined methods (`a/x+y`) of
    the first one."""
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
    """Whether the library has a recipe of that name; paths of files are not looked up."""
    parts = name.split("/")
    return len(parts) > 1 and all(p and p not in (".", "..") for p in parts) and find(name) is not None


def _find_alarms(columns: Mapping[str, list[Any]], recipe: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return (stage, rule) -> the step at which `shuhari train` raised the alarm."""
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


def _to_line(value: Any) -> str:
    """Return a setting, or the data of an event, on one line."""
    return "not set" if value is None else (value if isinstance(value, str) else repr(value))[:CUT]

