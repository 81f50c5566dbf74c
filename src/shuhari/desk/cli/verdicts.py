"""Output of `claim`: a plan of what it would run, and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shuhari.desk.cli.text import format_number, note, print_json, print_table, say

WORDS = {"up": "above", "down": "below", "not lower": "not lower than", "not higher": "not higher than",
         "equal": "as"}  # fmt: skip


def show_plan(one: Any, root: Path, out: Path) -> None:
    """Print the runs of a claim, which of them exist, what effects they could find, and their expected cost."""
    from shuhari.lab.claims import tuning
    from shuhari.lab.claims.checks import name_quantity
    from shuhari.lab.claims.gaps import find_gaps
    from shuhari.lab.claims.knobs import list_ours
    from shuhari.lab.claims.protocol import prepare
    from shuhari.lab.claims.result import (
        describe_differences,
        find_differences,
        find_modules,
        format_factor,
        list_quantities,
        read_kept,
    )
    from shuhari.lab.claims.runs import plan_runs
    from shuhari.lab.claims.tries import Begun, file_of
    from shuhari.ports.hooks import ability

    now = find_modules(one)  # builds every arm, so that mistakes show
    say(f"{one.name}: {one.says}")
    before = None if one.smoke else read_kept(one.name, out / "claims")
    tries = Begun(None if one.smoke else file_of(one.name, out), before)
    note_shipped_result(one, before, out)
    one, card, protocol = prepare(one, tries.last(), now)
    quantities = list_quantities(one)
    jobs = plan_runs(one, root.resolve(), any(ability(q, "alone") for q in quantities)) if one.arms else []
    budget = "".join(f", {amount:,.0f} {unit} each" for unit, amount in ([one.budget] if one.budget else []))
    begun = sum(j.arm not in one.arms for j in jobs)
    warm = f"; {begun} runs are warm starts and an untrained policy" if begun else ""
    looks = f"looks at {', '.join(map(str, one.looks))} seeds" if len(one.looks) > 1 else f"{len(one.seeds)} seeds"
    most = "at most " if len(one.looks) > 1 else ""
    if not one.arms:
        say(f"no run is made: {len(quantities)} numbers of each seed are simulated anew, {looks}; how long that takes "
            "is not known beforehand")  # fmt: skip
    else:
        say(f"{most}{len(jobs)} runs, {sum(j.done for j in jobs)} of them there{budget}; {looks}{warm}")
    kept_by = f"commit {protocol.commit}" if protocol.commit else _describe_uncommitted(one, protocol.why)
    say(f"protocol {protocol.mark}, number {protocol.tries}: {kept_by}; seeds from {one.seeds[0]}")
    for line in _describe_expected(one, quantities, card, before):
        say(line)
    if one.arms:
        print_table(("arm", "what differs from the method"), [
            (name, ", ".join(describe_differences(find_differences(one, name))) or "-") for name in one.arms
        ])  # fmt: skip
    print_table(("role", "check", "claimed", "margin"), [
        (c.rule.role, name_quantity(c.quantity),
         f"{_name_ours(c, list_ours(one, i))} {WORDS[c.rule.direction]} {format_factor(c.rule.factor)}{c.rule.against}",
         c.rule.margin)
        for i, c in enumerate(one.checks)
    ])  # fmt: skip
    for gap in find_gaps(one, tuning.read(one.name, out / tuning.FOLDER) if one.tune else None):
        say(f"lacks: {gap}")


def note_shipped_result(one: Any, before: Mapping[str, Any] | None, out: Path) -> None:
    """Say that the result which shuhari brings has tries that those of `out` do not count."""
    from shuhari.lab.claims.result import read_kept
    from shuhari.lab.claims.tries import count_tries

    brought = None if one.smoke or before is not None else read_kept(one.name)
    if brought is not None and (tries := count_tries(brought)):
        note(f"{one.name}: nothing in {out / 'claims'}, so that seeds and tries begin anew; the result that shuhari "
             f"brings counts {tries}")  # fmt: skip


def _name_ours(check: Any, arms: Sequence[str]) -> str:
    """Return what a check compares: the best of some arms; in the headline only if the method is behind."""
    if len(arms) == 1:
        return arms[0]
    best = f"the {'better' if len(arms) == 2 else 'best'} of {', '.join(arms)}"
    return f"{check.rule.arm} (if behind, {best})" if check.rule.role == "headline" else best


def _describe_uncommitted(one: Any, why: str) -> str:
    """Return why no commit holds a protocol, and what follows."""
    what = "it" if "as it stands" in why else one.file  # the reason names the file
    return f"{why}, so the result will be exploratory{f': commit {what} first' if one.file else ''}"


def show_card_plan(bed: str, root: Path, out: Path) -> None:
    """Print the runs of a bed's card, which of them exist, and their cost if known."""
    from shuhari.lab.claims import making
    from shuhari.lab.claims.cards import find
    from shuhari.lab.claims.claim import WARM

    claim = making.plan_card(bed)
    jobs = making.plan_jobs(claim, root)
    ((unit, amount),) = [claim.budget] if claim.budget else [("", 0.0)]
    say(f"{bed}: {len(jobs)} runs, {sum(job.done for job in jobs)} of them there, {amount:,.0f} {unit} each")
    card, total = find(bed, out / "beds"), 0.0
    for kept, warms in zip(card.seconds if card else (math.nan, math.nan), (False, True), strict=True):
        some = [job for job in jobs if (job.arm == WARM) is warms]
        total += len(some) * next((job.cpu for job in some if job.done), kept) if some else 0.0
    say(f"about {total / 60:.0f} minutes of one core" if math.isfinite(total) else "no run has finished: time unknown")


def _describe_expected(one: Any, quantities: Any, card: Any, before: Mapping[str, Any] | None) -> list[str]:
    """Return lines on what the seeds could find, and the minutes: from the bed's card, otherwise from the existing
    result."""
    from shuhari.lab.claims.cards import plan
    from shuhari.lab.claims.looks import simulate_power

    (i,) = one.find_checks("headline")
    rule, out = one.checks[i].rule, []
    if (planned := plan(card, one.checks[i], quantities[i], one.looks)) is not None:
        out.append(f"planned MDE {planned:.3g} (margin {rule.margin:g}), from the card of {card.bed}")
        if not planned:
            out.append('would end "not tested": the card has no noise to plan with; choose another bed or metric')
        elif not planned <= rule.margin:
            found = f"{one.looks[-1]} seeds find {planned:.3g} at best, and the margin is {rule.margin:g}"
            out.append(f'would end "not tested": {found}; raise the margin, or choose another bed or metric')
    elif before and (achieved := before.get("mde", {}).get("achieved")) is not None:
        out.append(f"MDE {achieved:.3g} (margin {rule.margin:g}) in the result that is there")
    else:
        out.append(
            f"MDE {simulate_power(one.looks).mde:.2f} standard deviations of one pair's difference: no card has these"
        )
    run, warm = card.seconds if card else (math.nan, math.nan)
    if math.isnan(run) and before and before.get("seeds"):
        seconds = before.get("cpu_s") or {"all": before["wall_s"]}
        run, warm = sum(seconds.values()) / len(before["seeds"]) / max(len(one.arms), 1), 0.0
    if not math.isnan(run) and one.arms:
        each = run * len(one.arms) + (warm if one.warm and not math.isnan(warm) else 0.0)
        ends = " to ".join(f"{n * each / 60:.1f}" for n in dict.fromkeys((one.looks[0], one.looks[-1])))
        out.append(f"{ends} minutes of one core, less where runs are there")
    return out


def show(result: Mapping[str, Any]) -> None:
    """Print a result."""
    from shuhari.lab.claims.on_bed import find_saturation
    from shuhari.lab.claims.wording import describe_verdict

    say(f"{result['method']}: {'a smoke run, no verdict' if result.get('smoke') else describe_verdict(result)}")
    if result["says"]:
        say(result["says"])
    rows = []
    for check in result["checks"]:
        known = check.get("low") is not None and check["low"] != check["high"]  # width 0 is no certainty
        interval = f"[{format_number(check['low'])}, {format_number(check['high'])}]" if known else "-"
        level = f"{check['level']:.1%}" if "level" in check else "-"
        why = f" ({check['why']})" if check.get("why") else ""
        rows.append((
            check["role"], _describe_check(check), check["direction"], check["margin"], check.get("effect"), interval,
            level, check.get("n"), check["verdict"] + why,
        ))  # fmt: skip
    print_table(("role", "what", "claimed", "margin", "effect", "interval", "level", "pairs", "verdict"), rows)
    effects = {k: v for k, v in result["mde"].items() if v is not None}
    if effects:
        say(f"MDE {', '.join(f'{k} {v:.3g}' for k, v in effects.items())}; margin {result['headline']['margin']:g}")
    for why in result["exploratory"]:
        say(f"exploratory: {why}")
    if result.get("objection"):
        say(f"known against it: {result['objection']}")
    for gap in result.get("gaps", ()):
        say(f"lacks: {gap}")
    if saturated := find_saturation(result):
        note(saturated)


def say_plot(result: Mapping[str, Any], out: Path) -> None:
    """Print the path of the plot of a result's curves, if there is one."""
    from shuhari.lab.claims.result import find_plot

    if (picture := find_plot(result, out)).is_file():
        say(f"plot: {picture}")


def show_board(bed: str, metric: str, out: Path, json: bool, runs: Path = Path("runs/claims")) -> None:
    """Print the methods with a result on a bed, best first, by `metric` or, if that is "", by the bed's own score. A
    claim takes precedence over an exploration. Exits with 1 if nothing was measured there."""
    from shuhari.desk.comparison import ComparisonError
    from shuhari.desk.sides import compare_bed
    from shuhari.lab.claims.board import put_in_order
    from shuhari.lab.claims.on_bed import find_name, list_results
    from shuhari.lab.claims.wording import describe_verdict

    given, bed = bed, find_name(bed)
    try:
        results = list_results(bed, out, known=Path(given).is_file())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--board") from None
    try:
        ranking = put_in_order(results, bed, metric)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from None
    metric, there, ranked, name = ranking.by, ranking.metrics, ranking.methods, ranking.by.partition(":")[0]
    judged = {n: describe_verdict(results[n], now=True) for n in ranked}
    if not ranked:
        if json:
            print_json({"bed": bed, "by": metric, "metrics": there, "methods": []})
        command = f"`shuhari claim METHOD --bed {given}` measures one"
        why = f"results there have {', '.join(there)}" if there else command
        note(f"nothing was measured on {bed!r}; {why}")
        raise typer.Exit(1)
    try:
        sides = compare_bed(bed, out, runs, metric, results=results)
    except ComparisonError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from None
    first, arms = sides.first, sides.arms
    if json:
        rows = [{"method": n, "value": arms[n]["value"], "less_baseline": e.value, "low": e.low, "high": e.high,
                 "level": arms[n]["level"], "corrected_low": arms[n]["low"], "corrected_high": arms[n]["high"],
                 "seeds": e.n, "verdict": judged[n]} for n, e in ranked.items()]  # fmt: skip
        base = {"arm": first, "value": arms[first]["value"], "seeds": arms[first]["n"]}
        print_json({"bed": bed, "by": metric, "metrics": there, "baseline": base, "methods": rows,
                    "caveats": sides.caveats})  # fmt: skip
        return
    table = []
    for n in (first, *ranked):
        entry = arms[n]
        level, low, high = (entry.get(key, math.nan) for key in ("level", "low", "high"))
        ends = "-" if math.isnan(low) else f"[{format_number(low)}, {format_number(high)}]"
        told = "-" if math.isnan(level) else f"{100 * level:.4g} %"
        table.append((n, entry["value"], entry.get("difference"), ends, told, entry["n"], judged.get(n, "-")))
    heads = ("method", metric, "less the baseline's", "interval", "level", "seeds", "verdict (claim, or --bed)")
    print_table(heads, table)
    if len(there) > 1:
        say(f"--by has also {', '.join(one for one in there if one != name)}, each with :area, :final, ...")
    for caveat in sides.caveats:
        note(caveat)


def _describe_check(check: Mapping[str, Any]) -> str:
    from shuhari.lab.claims.checks import name_quantity
    from shuhari.lab.claims.result import format_factor

    ours, theirs = str(check.get("ours", check["arm"])), f"{format_factor(check['factor'])}{check['against']}"
    more, less = (theirs, ours) if check["direction"] == "down" else (ours, theirs)  # an effect above 0 is as claimed
    return f"{name_quantity(check)}: {more} - {less}"
