"""The tables of the documentation that the code knows best: `python docs/tables.py` writes them, a test compares.

A table stands in a page between `<!-- <name> -->` and `<!-- /<name> -->`. To add one: a function here, an entry in
TABLES, and the two marks in a page.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shuhari.lab.claims.verdict import Headline
from shuhari.lab.claims.wording import describe_verdict

PAGES = Path(__file__).parent
sys.path.append(str(PAGES))
BESIDE = ("cards", "reference", "glossary", "peers", "field")  # modules beside this file
cards, reference, glossary, peers, field = map(import_module, BESIDE)
row = reference.row


def reasoning_gym() -> Iterator[str]:
    """Every generator of reasoning-gym, with its grading path and why."""
    from shuhari.tasks.reasoning.table import GRADING

    count = Counter(g.path for g in GRADING.values())
    counts = ", ".join(f"{count[p]} {p}" for p in ("theirs", "ours", "refused"))
    yield f"{len(GRADING)} generators: {counts}."
    yield ""
    yield row("generator", "graded by", "why")
    yield row("---", "---", "---")
    for name, graded in GRADING.items():
        yield row(f"`{name}`", graded.path, graded.why)


def spaces() -> Iterator[str]:
    """What becomes of each Gymnasium space, as observation and as action: tried out."""
    import numpy as np
    from gymnasium import spaces as s

    box, two = s.Box(-1, 1, (3,), np.float32), s.Discrete(2)
    examples: dict[str, tuple[s.Space[Any], str]] = {
        "`Box` of floats": (box, "numbers, flattened"),
        "`Box` of integers": (s.Box(0, 9, (3,), np.int64), "numbers, flattened"),
        "`Box` of uint8, three axes (four where frames are stacked)": (
            s.Box(0, 255, (7, 7, 3), np.uint8),
            "an image: `HWC` or `CHW`, divided by 255, through a convolution",
        ),
        "`Discrete`, any start": (s.Discrete(4, start=1), "one-hot"),
        "`MultiDiscrete`": (s.MultiDiscrete([2, 3]), "one-hot each"),
        "`MultiBinary`": (s.MultiBinary(3), "bits as they are"),
        "`Dict` of these, nested": (
            s.Dict(a=box, b=s.Dict(c=two)),
            "its parts side by side, as columns `context/a`, `context/b/c`",
        ),
        "`Tuple`": (s.Tuple((box, two)), ""),
        "`Text`": (s.Text(5), ""),
        "`Sequence`": (s.Sequence(two), ""),
        "`Graph`": (s.Graph(box, None), ""),
    }
    yield row("space", "as observation", "as action")
    yield row("---", "---", "---")
    for name, (space, features) in examples.items():
        yield row(name, _refused(space, two) or features, _refused(box, space) or _deciders(box, space))


def _refused(seen: Any, does: Any) -> str:
    """The task's error about a pair of spaces, which names the wrapper that helps."""
    from shuhari.tasks.views import check_spaces

    try:
        check_spaces("<id>", SimpleNamespace(observation_space=seen, action_space=does))
    except ValueError as error:
        wrapper = re.search(r"gymnasium\.wrappers\.\w+", str(error))
        return f"refused: `{wrapper[0]}` helps" if wrapper else "refused"
    return ""


def _deciders(seen: Any, does: Any) -> str:
    """The models that decide in an action space by themselves."""
    from shuhari.kernel.registry import entries

    able = []
    for (kind, name), model in sorted(entries().items()):
        alone = hasattr(model, "sample") and not hasattr(model, "bind")  # those that are made of others decide as these
        if kind == "model" and alone and "activation" in {f.name for f in fields(model)}:
            try:
                model().build(SimpleNamespace(spaces=lambda: (seen, does)))
            except (TypeError, ValueError):  # not of this space, or not without a setting: made of other roles
                continue
            able.append(f"`{name}`")
    return ", ".join(able)


def kept() -> list[dict[str, Any]]:
    """The results of all claims of recipes, by name."""
    from shuhari.lab.claims.kept_results import read_result

    return [r for name in claims() if (r := read_result(name)) is not None]


@cache
def claims() -> tuple[str, ...]:
    """The recipes that state a claim."""
    from shuhari.config.library import list_names
    from shuhari.config.recipe import load

    return tuple(name for name in list_names() if load(name).tree.get("claim"))


def verdicts() -> Iterator[str]:
    """How many claims were measured, and what was found, in a line."""
    now = [r for r in kept() if not r.get("stale")]
    count = Counter(r["verdict"] for r in now)
    found = ", ".join(f"{count[v]} {v}" for v in Headline if count[v])
    text = f"{count.total()} of {len(claims())} claims are measured as they stand{f': {found}' if found else ''}."
    seen, known = (sum(bool(r[key]) for r in now) for key in ("exploratory", "objection"))
    marks = f" {seen} are exploratory: the method had been run on that bed before the rule was fixed." if seen else ""
    marks += f" {known} are disputed: something is known against the comparison." if known else ""
    more = " The others were changed since they were measured, to be fairer." if count.total() < len(claims()) else ""
    yield text + marks + more


def scoreboard() -> Iterator[str]:
    """Every claim that was measured, a line each, from the result files alone: first those that nothing is known
    against and that lack nothing, then the others."""
    from shuhari.lab.claims.board import false_holds

    found = kept()
    yield from verdicts()
    if not found:
        return
    old = [r for r in found if r.get("stale")]
    now = [r for r in found if not r.get("stale")]
    whole = [r for r in now if r["kind"] == "trained" and not r["gaps"] and not r["objection"]]
    some = [r for r in now if r not in whole and not r["objection"]]
    disputed = [r for r in now if r["objection"]]
    for title, about, results in (
        ("Against the strongest plain rivals", "Each has rivals, a dose, a guard and a bed that is solved.", whole),
        ("Against the paper's baseline alone", "Nothing is known against these comparisons, and each lacks what its "
         "last column says: read *holds* as *better than the paper's baseline at one setting*.", some),
        ("Disputed", "What is known against the comparison stands in the last column: read no verdict of this table as "
         "more than a record of what was run.", disputed),
        ("Not measured as they stand", "These claims were changed after they were measured, to name stronger "
         "rivals, or to give the method the tuning that its rivals have: what stands here says nothing of "
         "the new claim.", old),
    ):  # fmt: skip
        yield from ("", f"## {title}", "", about if results else "None yet.")
        if results:
            yield ""
            yield from list_results(results)
    yield from ("", "## Each claim", "", false_holds(found))
    for r in found:
        yield from describe_result(r)


LACKS = {"no rival": "a knob turned", "no dose": "dose", "no reason": "reason of the margin", "nobody": "a solver",
         "no guard": "guard", "the guard reads": "guard of these arms", "the headline's reading": "guard at the end",
         "the method spent": "equal samples"}  # fmt: skip


def list_results(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of results, by family."""
    from shuhari.lab.claims.board import detectable, headline

    yield row("method", "the paper's headline", "verdict", "effect [interval], margin", "because", "premise",
              "MDE / margin", "bed", "minutes", "lacks, or what is known against it")  # fmt: skip
    yield row(*["---"] * 10)
    for r in results:
        link = f"[`{r['method']}`](#{r['method'].replace('/', '')})"
        premise = "met" if r["premise"]["met"] else f"fails: {'; '.join(r['premise']['failing'])}"
        if not r["premise"]["of"] and not r["premise"]["planned"]:
            premise = "none"
        bed = f"[`{r['bed']}`](beds.md)" if r["bed"] else r["task"].get("name", "-")
        bed += "" if r["kind"] == "trained" else f", {r['kind']}"
        minutes = f"{sum(r['cpu_s'].values()) / 60:.1f}" if r["cpu_s"] else "0"
        verdict = f"**{describe_verdict(r, because=False)}**"
        short = dict.fromkeys(name for gap in r["gaps"] for start, name in LACKS.items() if gap.startswith(start))
        lacks = r["objection"] or ", ".join(short) or "-"
        yield row(link, r["says"].replace("\n", " "), verdict, headline(r), r["because"], premise,
                  detectable(r), bed, minutes, lacks)  # fmt: skip


def describe_result(result: Mapping[str, Any]) -> Iterator[str]:
    """The checks of a result, what was measured before, and what its arms set."""
    from shuhari.lab.claims.board import ruled

    yield from ("", f"### {result['method']}", "")
    if result["objection"]:
        yield f"- known against it: {result['objection']}"
    yield from (f"- exploratory: {why}" for why in result["exploratory"])
    yield from (f"- lacks: {gap}" for gap in result["gaps"])
    yield from (f"- {ruled(check)}" for check in result["checks"])
    earlier = [f"{h['date']} {h['verdict']}{'' if 'rule' in h else ' (older rule)'}" for h in result["history"][:-1]]
    if earlier:
        yield f"- before: {', '.join(earlier)}"
    yield from ends(result)


def ends(result: Mapping[str, Any]) -> Iterator[str]:
    """The last lines about a method: what its arms set, and its files."""
    from shuhari.lab.claims.result import describe_differences

    for name, arm in result["arms"].items():
        if name != "method":
            yield f"- arm `{name}`: {', '.join(f'`{c}`' for c in describe_differences(arm['changes']))}"
    file, picture = f"../results/claims/{result['method']}.json", f"../results/plots/{result['method']}.png"
    drawn = (PAGES / picture).is_file()
    yield f"- [values, curves, notes]({file})" + (f", [picture]({picture})" if drawn else "")


def picture() -> str:
    """Effects and intervals, on one axis, of the claims that are measured as they stand."""
    from shuhari.lab.claims.board import draw

    return draw([r for r in kept() if not r.get("stale")])


def curves() -> str:
    """Curves of published numbers. As matplotlib's versions draw differently, the file stays if it shows the same
    results."""
    from tempfile import TemporaryDirectory

    from shuhari.lab.reproduce.picture import digest, list_measured, save_curves
    from shuhari.lab.reproduce.targets import read_targets

    names, results = list(read_targets()), PAGES.parent / "results"
    here = PAGES / CURVES
    if here.is_file() and digest(list_measured(names, results)) in (old := here.read_text(encoding="utf-8")):
        return old
    with TemporaryDirectory() as folder:
        save_curves(names, results, to := Path(folder) / "curves.svg")
        return to.read_text(encoding="utf-8")


def link_method(name: str) -> str:
    """The name of a recipe, as a link to the page of a method; `stage.py` has it lead to that of the site."""
    page = f"src/shuhari/methods/{name}/README.md"
    return f"[`{name}`](../{page})" if (PAGES.parent / page).is_file() else f"`{name}`"


def papers() -> Iterator[str]:
    """Every paper that a recipe or an analysis cites."""
    from shuhari.config.library import list_names
    from shuhari.config.recipe import load
    from shuhari.desk.analyzing import running
    from shuhari.lab.claims.kept_results import read_result

    yield row("recipe", "paper", "year", "what it changes", "verdict")
    yield row("---", "---", "---", "---", "---")
    for name in list_names():
        tree = load(name).tree
        paper = tree.get("paper")
        if paper is None:
            continue
        number = paper.get("arxiv")
        title = f"[{paper['title']}](https://arxiv.org/abs/{number}), {number}" if number else paper["title"]
        kept = read_result(name)
        judged = describe_verdict(kept) if kept else "not measured" if "claim" in tree else "-"
        changes = paper.get("changes", tree.get("summary", ""))
        yield row(link_method(name), title, str(paper.get("year", "-")), changes, judged)
    for name, one in running.list_packaged().items():
        paper = one.stated.paper
        title = f"[{paper['title']}](https://arxiv.org/abs/{paper['arxiv']}), {paper['arxiv']}"
        judged = "finding" if running.read_finding(name) else "not measured"
        yield row(link_method(name), title, str(paper["year"]), paper["changes"], judged)


PLACES = {  # a key of a method's recipe -> what of a run it changes
    "curriculum": "which problems", "rollout": "sampling", "engine": "the engine", "buffer": "data",
    "collect": "the batch", "reward": "rewards", "transform": "the batch", "part": "the loss",
    "learner": "the learner", "stage": "stages", "study": "a run of runs", "task": "the task",
}  # fmt: skip


def troubles() -> Iterator[str]:
    """Methods by the trouble that they are against, and what of a run each changes."""
    from shuhari.config.library import TROUBLES, find_recipe, read_demonstration, read_table
    from shuhari.config.overlay import list_removed
    from shuhari.lab.claims.kept_results import list_methods, read_result

    methods = [m for m in list_methods() if m.helps]
    for trouble, sign in TROUBLES.items():
        found = [m for m in methods if trouble in m.helps]
        if not found:
            continue
        yield f"### {trouble.capitalize()}"
        yield ""
        yield f"{sign[0].upper()}{sign[1:]}."
        yield ""
        yield row("method", "where it acts", "what it changes", "verdict")
        yield row("---", "---", "---", "---")
        for m in found:
            source, kept = find_recipe(m.name), read_result(m.name)
            assert source is not None
            own = read_table(m.name, source)
            keys = {*own, *(path[0] for path in list_removed(own))}
            places = dict.fromkeys(place for key, place in PLACES.items() if key in keys)
            where = ", ".join(places) if "on" in own else "a whole recipe"
            shown = read_demonstration(m.name, source) is not None
            judged = describe_verdict(kept) if kept else "a demonstration" if shown else "not measured"
            yield row(link_method(m.name), where or "settings", own["paper"]["changes"], judged)
        yield ""


def scales() -> Iterator[str]:
    """Claims on their own bed and on others: effects in margins, and whether these keep their order."""
    from shuhari.lab.claims.scale import by_size, correlate_ranks, read_results

    found = by_size(kept(), read_results(PAGES.parent / "results"))
    if not found:
        yield "No claim has been measured on a second bed yet."
        return
    yield row("method", "bed", "weights", "effect [interval], in margins", "verdict")
    yield row(*["---"] * 5)
    for name, results in found.items():
        for i, one in enumerate(results):
            effect = f"{one.effect:.2f} [{one.low:.2f}, {one.high:.2f}]" if math.isfinite(one.effect) else "-"
            yield row("" if i else f"`{name}`", f"`{one.bed}`", f"{one.weights:,}", effect, one.verdict)
    both = [(a.effect, b.effect) for a, *more in found.values() for b in more[-1:]]
    none = [f"`{name}` ({more[-1].verdict})" for name, (_, *more) in found.items()
            if more and not math.isfinite(more[-1].effect)]  # fmt: skip
    both = [pair for pair in both if all(map(math.isfinite, pair))]
    same = sum(a * b > 0 for a, b in both)
    ends = [(first, more[-1]) for first, *more in found.values() if more]
    sure = sum(all(one.low * one.high > 0 for one in pair) for pair in ends)
    yield ""
    yield f"Of {len(both)} methods with a number on their own bed and on the largest, {same} have one sign on both; "
    yield f"both intervals leave out 0 in {sure}."
    yield f"On their largest bed {', '.join(none)} had no effect to compare." if none else ""
    if len(both) > 1:
        ranks = correlate_ranks(*zip(*both, strict=True))
        ends = f" [{ranks.low:.2f}, {ranks.high:.2f}]" if math.isfinite(ranks.low) else ", too few for an interval"
        yield f"The rank correlation of these effects is {ranks.value:.2f}{ends}."


def pairs() -> Iterator[str]:
    """Methods that were trained together: each alone and both, against the bed, and both against each."""
    from shuhari.lab.claims.board import read_by_seed, subtract
    from shuhari.lab.claims.explore import JOINED, read_every

    found = {(r["bed"], r["method"]): r for r in read_every(PAGES.parent / "results")}
    yield row("bed", "methods", "number", "less the bed's, of the first alone", "of the second alone", "of both",
              "both less the first", "both less the second", "seeds")  # fmt: skip
    yield row(*["---"] * 9)
    for (bed, name), both in sorted(found.items()):
        first, joined, second = name.partition(JOINED)
        parts = [found.get((bed, one)) for one in (first, second)]
        if not joined or None in parts:
            continue
        metric = both["headline"]["metric"]
        ours, base = (read_by_seed(both, arm, metric) for arm in ("method", "baseline"))
        alone = [read_by_seed(one, "method", metric) for one in parts if one]
        effects = [subtract(one, base) for one in (*alone, ours)] + [subtract(ours, one) for one in alone]
        ends = [f"{e.value:+.3f} [{e.low:.3f}, {e.high:.3f}]" for e in effects]
        yield row(f"`{bed}`", f"`{first}`, `{second}`", f"`{metric}`", *ends, str(min(e.n for e in effects)))


POOLS = {"tables baselines/bandit": "128 runs of the bandit", "tables baselines/gridworld": "128 runs of the gridworld",
         "text 64 runs": "64 runs of a language model, of which some collapse"}  # fmt: skip


def trials() -> Iterator[str]:
    """Claims drawn from pools of runs, without an effect and with planted ones."""
    found = json.loads((PAGES.parent / "benchmarks" / "results" / "aa.json").read_text(encoding="utf-8"))
    yield row("pool", "say that arms differ, of 400", "hold", "planted, of 50", "the margin planted, of 400", "control")
    yield row(*["---"] * 6)
    for what, pools in found.items():
        for name, parts in pools.items():
            if not isinstance(parts, dict):
                continue
            pool = POOLS.get(f"{what} {name}") or f"`beds/{what.removeprefix('card ')}`, `{name}`"
            null, control = parts["null"], "-"
            if "control" in parts:
                control = f"{share(parts['control']['holds'])}, {pools[f'{name}, control in margins']:.0f} margins"
            yield row(pool, share(null["excludes 0"]), share(null["holds"]), share(parts["planted"]["holds"]),
                      share(parts["just found"]["holds"]), control)  # fmt: skip
    ends = {name: f"{low:.1%} to {high:.1%}" for name, (low, _, high) in found["pools"].items()}
    yield ""
    yield (
        "Comparisons of one pool share its runs, so an interval is that of its pool alone. By simulation, 40 pools of "
        f"24 normal pairs: {ends['excludes 0']} say that arms differ, {ends['holds']} hold, and "
        f"{ends['the margin is found']} find the margin."
    )


def share(of: Mapping[str, float]) -> str:
    """A share with its interval, in per cent."""
    return f"{of['share']:.1%} [{100 * of['low']:.1f}, {100 * of['high']:.1f}]"


def reproduced() -> Iterator[str]:
    """Ours beside published numbers, of all that `shuhari reproduce` knows."""
    from shuhari.lab.reproduce.report import HEAD, list_notes, list_rows
    from shuhari.lab.reproduce.targets import read_targets

    yield row(*HEAD)
    yield row(*["---"] * len(HEAD))
    names, out = [name for name, target in read_targets().items() if not target.data], PAGES.parent / "results"
    for cells in list_rows(names, out):
        yield row(f"`{cells[0]}`", *cells[1:])
    for line in list_notes(names, out):
        yield ""
        yield f"{line[0].upper()}{line[1:]}."


def recorded() -> Iterator[str]:
    """The published scores on recorded data, by data set and method."""
    from shuhari.lab.reproduce.report import list_scores

    head, rows = list_scores(PAGES.parent / "results")
    yield row(*head)
    yield row(*["---"] * len(head))
    for cells in rows:
        yield row(*cells)


def reproduced_briefly() -> Iterator[str]:
    """Published numbers that were measured on all seeds of their protocol, and peers that were run here."""
    from shuhari.lab.reproduce.report import list_rows
    from shuhari.lab.reproduce.runs import list_values, read_result
    from shuhari.lab.reproduce.targets import read_targets

    yield row("trained", "environment", "ours, mean and spread of seeds", "published, or run here", "verdict")
    yield row(*["---"] * 5)
    out = PAGES.parent / "results"
    for target in read_targets().values():
        if len(list_values(read_result(target.name, out))) >= target.seeds:
            for cells, one in zip_longest(list_rows([target.name], out), target.published):
                if not cells[4]:  # nothing to be beside
                    continue
                env = f", {one.env}" if one and one.env != target.env else ""
                there = f"{cells[4]} ({cells[5]}{env})"
                ours = f"{cells[2]}, {cells[3]} seeds"
                ends = ", a time limit as an end" if target.name.endswith("-as-released") else ""
                yield row(target.name.partition("-")[0].upper() + ends, target.env, ours, there, cells[7])


def real_list() -> Iterator[str]:
    """The claims that were drawn from for a pretrained model, with today's verdicts; what is read of each is kept."""
    page = (PAGES / "real.md").read_text(encoding="utf-8").split("<!-- /real list -->")[0]
    now = {r["method"]: f"{r['verdict']} (stale)" if r.get("stale") else r["verdict"] for r in kept()}
    yield row("claim", "verdict on its bed", "what is read on the real model")
    yield row(*["---"] * 3)
    for name, read in re.findall(r"^\| `(\S+)` \| .*? \| (.*) \|$", page, flags=re.MULTILINE):
        yield row(f"`{name}`", now.get(name, "a demonstration now"), read)


def real() -> Iterator[str]:
    """Claims asked again of a pretrained model (`benchmarks/real.py`), beside what they gave on their beds."""
    from scipy.stats import spearmanr

    from shuhari.lab.claims.board import describe_effect

    results, worst = PAGES.parent / "results", []
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((results / "real").glob("*/*.json"))]
    drawn = re.findall(r"^\d\. `(\S+)`$", (PAGES / "real.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    done = [one["method"] for one in found]
    left = ", ".join(f"`{name}`" for name in drawn if name not in done)
    yield from (f"{len(done)} of the {len(drawn)} that were drawn are measured. Without a row: {left}.", "")
    yield row("claim", "compared with", "on its bed", "on the model", "margin", "pairs")
    yield row(*["---"] * 6)
    for one in found:
        bed = json.loads((results / "claims" / f"{one['method']}.json").read_text(encoding="utf-8"))
        beds, pairs = {check["role"] + str(check["against"]): check for check in bed["checks"]}, []
        for check in one["checks"]:
            guard, before = check["role"] == "guard", beds.get(check["role"] + str(check["against"]), {})
            known, unit = before.get("low") is not None, " of its value" if check.get("ratio") else ""
            yield row(link_method(one["method"]), f"guard: {check['metric']}" if guard else f"`{check['against']}`",
                      f"{describe_effect(before)}, {before['verdict']}" if known else "-", describe_effect(check),
                      f"{check['margin']:g}{unit}", str(check["n"]))  # fmt: skip
            if known and not guard:
                pairs.append((before["effect"] / before["margin"], check["effect"] / check["margin"]))
        worst += [tuple(map(min, zip(*pairs, strict=True)))] if pairs else []
    if len(worst) > 2:
        rank = float(spearmanr(*zip(*worst, strict=True)).statistic)
        yield from ("", f"Rank correlation of the worst effects, in margins, over {len(worst)} claims: {rank:.2f}.")


def rules() -> Iterator[str]:
    """Every rule of the diagnosis."""
    from shuhari.lab.diagnosis import RULES

    yield row("rule", "number", "healthy", "asked", "likely cause", "what helps")
    yield row(*["---"] * 6)
    for r in RULES:
        when = (r.when.__doc__ or "").strip()
        first = [f"from step {r.least}"] * (r.least > 1)
        asked = [*first, *[when] * (when != "always" or not first), *["also as an alarm"] * r.at_once]
        number = f"`{r.reads}`: {(r.number.__doc__ or '').strip()}"
        yield row(f"`{r.name}`", number, r.describe_range(), "; ".join(asked), r.cause, r.helps)


def analyses() -> Iterator[str]:
    """Every analysis: what it answers, what it reads, and the page of its paper."""
    from shuhari.desk.analyzing import running
    from shuhari.desk.components import summarise
    from shuhari.kernel import registry

    pages = {one.stated.analysis: one for one in running.list_packaged().values()}
    yield row("analysis", "reads", "what it answers", "paper")
    yield row("---", "---", "---", "---")
    for name, kind in running.list_analyses().items():
        one = pages.get(name)
        paper = one.stated.paper if one else {}
        page = f"[{paper.get('title')}](../src/shuhari/methods/{one.name}/README.md)" if one else ""
        reads = getattr(registry.find(kind, name), "reads", "nothing")
        yield row(f"`{name}`", reads, summarise(kind, name)["summary"], page)


def findings() -> Iterator[str]:
    """Every packaged finding that is kept: its question, and its numbers beside the null."""
    from shuhari.desk.analyzing import running

    yield row("finding", "what was asked", "mean over three seeds [95 % interval]; null")
    yield row("---", "---", "---")
    for name, one in running.list_packaged().items():
        if (found := running.read_finding(name)) is None:
            continue
        shown = [describe_number(key, x) for key, x in list(found["numbers"].items())[:6]]
        more = len(found["numbers"]) - len(shown)
        page = f"[{name}](../src/shuhari/methods/{one.name}/README.md)"
        yield row(page, one.stated.says, "; ".join(shown) + (f"; {more} more" if more > 0 else ""))


def describe_number(name: str, x: Mapping[str, Any]) -> str:
    """A number of a packaged finding, in a cell."""
    nulls = [v for v in x["null"] if v is not None]
    ends = "" if x["low"] is None else f" [{x['low']:.3g}, {x['high']:.3g}]"
    mean = "-" if x["mean"] is None else f"{x['mean']:.3g}"
    return f"{name} {mean}{ends}" + (f"; {sum(nulls) / len(nulls):.3g}" if nulls else "")


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "reasoning-gym generators": reasoning_gym,
    "spaces": spaces,
    "diagnosis rules": rules,
    "scoreboard": scoreboard,
    "scoreboard line": verdicts,
    "papers": papers,
    "field": field.field,
    "analyses": analyses,
    "findings": findings,
    "troubles": troubles,
    "trials": trials,
    "scales": scales,
    "pairs": pairs,
    "cards": cards.cards,
    "reproduced": reproduced,
    "reproduced briefly": reproduced_briefly,
    "recorded": recorded,
    "real": real,
    "real list": real_list,
    "public names": reference.names,
    "sections": reference.sections,
    "shared tables": reference.shared_tables,
    "components": reference.components,
    "glossary": glossary.glossary,
    **peers.TABLES,
}
CURVES = "images/reproduce-curves.svg"
PICTURES: Mapping[str, Callable[[], str]] = {"scoreboard.svg": picture, CURVES: curves, "field.svg": field.picture}


def pages() -> list[Path]:
    """The pages that may have tables."""
    return [PAGES.parent / "README.md", *sorted(PAGES.glob("*.md"))]


def filled(page: str) -> str:
    """The page with each of its tables as the code has it now."""
    for name, table in TABLES.items():
        first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
        if first not in page:
            continue
        body = "\n".join([first, *table(), last])
        page = re.sub(re.escape(first) + ".*?" + re.escape(last), lambda _, body=body: body, page, flags=re.DOTALL)
    return page


def main() -> int:
    """Write every page that has a table; 1 where `--check` finds one that would change."""
    changed = 0
    for path in pages():
        page = path.read_text(encoding="utf-8")
        new = filled(page)
        changed += new != page
        if new != page and "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    for name, draw in PICTURES.items():
        path, new = PAGES / name, draw()
        here = path.read_text(encoding="utf-8") if path.is_file() else ""
        changed += new != here
        if new != here and "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    return int(bool(changed) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
