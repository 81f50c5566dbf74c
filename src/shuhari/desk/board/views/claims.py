"""Claims: the scoreboard of all methods, its plot, and one claim with its whole result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from shuhari.config.overlay import RecipeError
from shuhari.data import EMPTY, nearest
from shuhari.desk.board import results
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.picture import Picture
from shuhari.desk.serving.refusals import Refused
from shuhari.store import Run

UNMEASURED = "not measured"
TEXT = 2000  # characters of a text of a recipe or a result
Order = Literal["verdict", "method", "effect", "bed", "year", "seeds"]


def list_claims(
    runs: Catalogue,
    words: str = "",
    family: str = "",
    verdict: str = "",
    order: Order = "verdict",
    down: bool = False,
    limit: Annotated[int, Field(ge=1, le=1000)] = 500,
    offset: Annotated[int, Field(ge=0)] = 0,
    wait: bool = False,
) -> dict[str, Any]:
    """Return {total, families, verdicts, chance, pending, problems, claims}: every method with a claim, its verdict,
    and its effect in units of the margin. families, verdicts: counts; chance: a sentence on how many hold by chance;
    pending: whether it is still unknown which results are of an earlier version of the code (with `wait` it is
    known)."""
    from shuhari.lab.claims.board import false_holds

    known = results.knows_core(wait=wait)
    found, problems = results.read_all()
    rows = [_describe_method(m.name, found.get(m.name), known) for m in results.list_claimed()]
    chosen = [r for r in rows if family in ("", r["family"]) and verdict in ("", r["verdict"])]
    wanted = words.lower().split()
    chosen = [
        r
        for r in chosen
        if all(word in _get_text(r) for word in wanted)
    ]
    chosen.sort(key=lambda r: r["method"])
    chosen.sort(key=lambda r: _get_key(r, order), reverse=down)
    if order in ("effect", "year", "seeds"):
        chosen.sort(key=lambda r: r[order] is None)  # those without one at the end
    return {
        "total": len(chosen),
        "families": dict(Counter(r["family"] for r in rows)),
        "verdicts": dict(sorted(Counter(r["verdict"] for r in rows).items(), key=lambda item: _rank(item[0]))),
        "chance": false_holds([result for result, _ in found.values()]),
        "pending": not known,
        "problems": problems,
        "claims": chosen[offset : offset + limit],
    }


def list_claimed(runs: Catalogue, run: str) -> list[dict[str, str]]:
    """Return [{method, words}]: the claims of a run's recipe and of its methods, with their verdicts."""
    recipe = Run(runs.find(run)).recipe
    name, known = str(recipe.get("name", "")), results.knows_core()
    laid = recipe.get("laid")
    methods = {name, name.partition("+")[0], *(laid if isinstance(laid, dict) else ())}
    rows = [_describe_method(m.name, results.read_one(m.name), known) for m in results.list_claimed(methods)]
    return [{"method": row["method"], "words": row["words"]} for row in rows]


def draw_effects(runs: Catalogue, family: str = "", verdict: str = "", words: str = "") -> Picture:
    """Return an SVG of the effects and intervals of the selected claims on one axis, in units of the margin."""
    from shuhari.lab.claims.board import draw

    names = [r["method"] for r in list_claims(runs, words, family, verdict)["claims"]]
    found, _ = results.read_all()
    return Picture(draw(found[name][0] for name in names if name in found).encode(), "image/svg+xml")


def read_claim(runs: Catalogue, method: str, wait: bool = False) -> dict[str, Any]:
    """Return everything about a method's claim: its text, verdict, checks with their numbers, curves of the arms with
    bands over seeds, protocol, history, notes, paper. Without a result: what its recipe has."""
    names = [m.name for m in results.list_claimed()]
    if method not in names:
        raise Refused(f"no claim of {method[:200]!r}; {nearest(method[:100], names)}", "method", status=404)
    try:
        found = results.read_one(method)
    except RecipeError as error:
        raise Refused(str(error), "method", status=422) from None
    table = results.describe(method)
    known = results.knows_core(wait=wait)
    stated = table.get("claim") or EMPTY
    about = {
        **_describe_method(method, found, known),
        "summary": str(table.get("summary", ""))[:TEXT],
        "paper": {k: v for k, v in (table.get("paper") or EMPTY).items() if isinstance(v, str | int | float | list)},
        "command": f"shuhari claim {method}",
        "pending": not known,
    }
    if found is None:
        return {**about, "says": str(stated.get("says", "")), "notes": list(stated.get("notes", ()))}
    return {**about, **_describe_result(found[0], known)}


def _describe_result(result: Mapping[str, Any], known: bool) -> dict[str, Any]:
    from shuhari.lab.claims.board import detectable, headline, ruled
    from shuhari.lab.claims.result import describe_differences
    from shuhari.lab.claims.sources import find_changed, is_older
    from shuhari.lab.claims.tries import count_tries
    from shuhari.lab.claims.wording import EARLIER

    kept = ("headline", "premise", "mde", "looks", "cpu_s", "protocol", "exploratory", "budget", "seeds", "start",
            "chance", "task", "model", "kind", "notes", "stale", "rivals", "dose", "gaps", "objection",
            "worth")  # fmt: skip
    arms = {name: {"differs": describe_differences(arm["changes"]), "ledger": arm.get("ledger", {}),
                   "diverged": arm.get("diverged", [])} for name, arm in result["arms"].items()}  # fmt: skip
    own = {name: digest for name, digest in result["hashes"]["modules"].items() if name.startswith("shuhari.")}
    stale = str(result.get("stale") or find_changed(own, {}))
    age = "the training loop, or a module that others share, has changed since, which does not undo it"
    age = f"measured on an {EARLIER}: {age}"
    freshness = stale or (None if not known else age if is_older(result["hashes"]) else "up to date")
    return {
        **{key: result[key] for key in kept if key in result},
        "checks": [
            {k: v for k, v in check.items() if k != "range"}
            for check in result["checks"]
        ],
        "told": [ruled(check) for check in result["checks"]],
        "effect_text": headline(result),
        "detectable": detectable(result),
        "tries": count_tries(result),
        "freshness": freshness,
        "history": [_describe_try(line) for line in result["history"]],
        "arms": arms,
        "unit": next(iter(result["budget"] or {"steps": 0})),
        "curves": _read_curves(result),
        "elsewhere": _list_elsewhere(result["method"]),
    }


def _describe_try(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the history: a try's outcome, seeds and protocol."""
    names = ("date", "verdict", "seeds", "try", "protocol", "commit", "used", "says")
    return {name: line.get(name) for name in names}


def _read_curves(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return metric -> arm -> the mean with its band over seeds, as in the result's plot."""
    from shuhari.lab.plot import compute_band

    out: dict[str, dict[str, Any]] = {}
    for name, arm in result["arms"].items():
        for metric, curves in arm["curves"].items():
            if (band := compute_band(curves)) is not None:
                x, mean, low, high, n = band
                out.setdefault(metric, {})[name] = {"x": x, "mean": mean, "low": low, "high": high, "n": n}
    return out


def _list_elsewhere(method: str) -> list[dict[str, Any]]:
    """Return the results of a method on other beds: the same claim (`scale`), or any comparison (`explore`)."""
    found = [
        (r, kind)
        for kind in ("scale", "explore")
        for r in results.read_elsewhere(kind)
        if r["method"] == method
    ]
    return [{"bed": r["bed"], "kind": kind, "verdict": r["verdict"], **_measure(r)} for r, kind in found]


def _describe_method(name: str, found: tuple[Mapping[str, Any], str] | None, known: bool) -> dict[str, Any]:
    """Return a line of the scoreboard."""
    from shuhari.lab.claims.wording import describe_verdict

    table = results.describe(name)
    paper = (found[0].get("paper") if found else None) or table.get("paper") or EMPTY
    line = {"method": name, "family": name.partition("/")[0], "year": paper.get("year"),
            "title": str(paper.get("title", ""))[:TEXT]}  # fmt: skip
    if found is None:
        says = str((table.get("claim") or EMPTY).get("says", ""))
        none = dict.fromkeys(("effect", "low", "high", "margin", "level", "seeds"))
        return {**line, "verdict": UNMEASURED, "words": UNMEASURED, "says": says[:TEXT], "bed": "", "from": "", **none}
    result, where = found
    more = {"because": result.get("because"), "guard": result.get("guard"), "bed": result.get("bed")}
    return {**line, "verdict": result["verdict"], "words": describe_verdict(result, now=known),
            "says": str(result["says"])[:TEXT], "from": where, **more, **_measure(result)}  # fmt: skip


def _measure(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effect and its interval in units of the margin, the margin, the level and the seeds; None if nothing
    was measured."""
    from shuhari.lab.claims.board import make_line

    line, head = make_line(result), result["headline"]
    effect, low, high = line.ends if line and line.ends else (None, None, None)
    more = {"margin": head.get("margin"), "level": head.get("level"), "seeds": head.get("n", len(result["seeds"]))}
    return {"effect": effect, "low": low, "high": high, **more}


def _get_text(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[k]) for k in ("method", "title", "says", "words", "bed", "year")).lower()


def _rank(verdict: str) -> int:
    from shuhari.lab.claims.verdict import Headline

    order = [*map(str, Headline), UNMEASURED]
    return order.index(verdict) if verdict in order else len(order)


def _get_key(row: Mapping[str, Any], order: str) -> Any:
    if order == "verdict":
        return _rank(row["verdict"]), -(row["effect"] or 0.0)
    value = row[order]
    return value if value is not None else "" if order in ("method", "bed") else float("-inf")
