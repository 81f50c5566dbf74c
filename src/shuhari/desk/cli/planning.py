"""`plan`: how fast a measured run would be on other devices, split differently, synchronous or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.data import nearest
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.desk.planning.choose import Plan, Scale
    from shuhari.desk.planning.hardware import Hardware
    from shuhari.desk.planning.measured import Measured
    from shuhari.desk.planning.published import Predicted
    from shuhari.desk.planning.setting import Setting
    from shuhari.desk.planning.workload import Workload

OF_WORK = ("n", "length", "limit")
OF_SETTING = ("groups", "stream", "steps")
COLUMNS = ("mode", "sampling", "training", "s a step", "tokens/s", "a device", "staleness", "idle", "rows")


READS = {
    "": "RUN --devices --split --mode --staleness --price --scale --lengths --set --json",
    "--mode sync": "RUN --devices --price --scale --lengths --set --json",
    "--here": "RUN --staleness --price --scale --lengths --set --json",
    "--published": "--json",
}


def plan(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(help="A run made with --profile: a path, a name under runs/, or `latest`.")
    ] = "",
    devices: Annotated[int, typer.Option(min=1, help="Devices like the one that the run was measured on.")] = 8,
    split: Annotated[str, typer.Option(help="Devices that sample, while the others learn; `auto`: the best.")] = "auto",
    mode: Annotated[str, typer.Option(help="sync, async, partial, or all of them.")] = "all",
    staleness: Annotated[
        float | None, typer.Option(min=0, help="Versions that a group may be behind (default: the run's, or 1).")
    ] = None,
    price: Annotated[float, typer.Option(min=0, help="What a device costs an hour.")] = 0.0,
    here: Annotated[
        bool, typer.Option("--here", help="On the run's machine, one process, instead of devices.")
    ] = False,
    scale: Annotated[int, typer.Option(min=0, help="Up to so many devices: what is the first bottleneck?")] = 0,
    lengths: Annotated[str, typer.Option(help="Another run that answers are taken from; speeds are RUN's.")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A cost, or n, groups, length, limit, wait.")
    ] = None,
    published: Annotated[bool, typer.Option("--published", help="Predict speed-ups that others published.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan devices: throughput, staleness, idle share, the best split and the cost, from a run made with --profile.

    `sync` samples on all devices, then trains on all; `async` does both side by side, and finishes answers in progress
    before it loads new weights; `partial` interrupts them, and continues with the new weights. `--set length=2` doubles
    answers, `wait=2` the time of tools; costs that a run does not show (`weights`, `bandwidth`, `latency`, `replica`,
    ...) are set the same way.

    Example: shuhari plan runs/grpo --devices 8 --price 2.5
    """
    check_together(ctx, READS)
    if published:
        _compare_published(json)
        return
    if not run:
        raise typer.BadParameter("of which run? give its folder: shuhari plan RUN, or --published")
    from shuhari.desk.planning.setting import MODES

    modes = MODES if mode == "all" else (mode,)
    if mode != "all" and mode not in MODES:
        near = nearest(mode, ["all", *MODES])
        raise typer.BadParameter(f"expected a mode, got {mode!r}; {near}", param_hint="--mode")
    sampling = _read_split(split, devices)
    measured, setting, hardware, work = _prepare(run, lengths, sets or [])
    hardware = replace(hardware, price=price or hardware.price)
    from shuhari.desk.planning import choose

    behind = setting.staleness if staleness is None else staleness
    own = _own(setting, behind) if here else None
    aside = replace(setting, mode="partial", staleness=behind if staleness is not None else behind or 1.0, shared=False)
    try:
        known = choose.plan(measured.setting, measured.hardware, measured.workload)
        plans = (
            [choose.plan(own, hardware, work)] if own is not None
            else choose.compare(modes, devices, sampling, aside, hardware, work)
        )  # fmt: skip
        scales = _scale(scale, plans, hardware, work) if scale else []
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        print_json(_to_json(run, measured, known, hardware, work, plans, scales))
        return
    _say_measured(measured, known, work)
    _say_plans(plans, hardware)
    if scales:
        _say_scales(scales, plans[-1], setting, hardware, work)


def _read_split(split: str, devices: int) -> int:
    if split == "auto":
        return 0
    if not split.isdigit() or not 1 <= int(split) < devices:
        message = f"{split!r}: expected `auto`, or a number of the {devices} devices from 1 to {devices - 1}"
        raise typer.BadParameter(message, param_hint="--split")
    return int(split)


def _prepare(run: str, lengths: str, sets: Sequence[str]) -> tuple[Measured, Setting, Hardware, Workload]:
    """Return the run as measured, and its setting, costs and answers with the changes of --set."""
    from shuhari.desk.planning.measured import PlanError, measure
    from shuhari.store import resolve

    try:
        measured = measure(Path(resolve(run)))
        answers = measure(Path(resolve(lengths))).workload if lengths else measured.workload
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    given = _read_sets(sets)
    factor = given.pop("wait", 1.0)
    own, work = (
        {k: given.pop(k) for k in names if k in given}
        for names in (OF_SETTING, OF_WORK)
    )
    try:
        setting, hardware = replace(measured.setting, **own), replace(measured.hardware, **given)
        answers = replace(answers, waits=tuple(w * factor for w in answers.waits), **work)
    except ValueError as error:  # two settings that do not fit together
        raise typer.BadParameter(str(error), param_hint="--set") from None
    return measured, setting, hardware, answers


def _read_sets(sets: Sequence[str]) -> dict[str, Any]:
    """Read `--set`, checked like the settings of a recipe."""
    from shuhari.bounds import AtLeast0, hints
    from shuhari.config.overlay import RecipeError, format_path, parse_setting
    from shuhari.config.settings import Settings
    from shuhari.desk.planning.hardware import Hardware
    from shuhari.desk.planning.setting import Setting
    from shuhari.desk.planning.workload import Workload

    known: dict[str, Any] = {**hints(Hardware), "wait": AtLeast0}
    for cls, names in ((Setting, OF_SETTING), (Workload, OF_WORK)):
        known |= {k: hints(cls)[k] for k in names}
    try:
        given = {format_path(path): value for path, value in map(parse_setting, sets)}
        for key in given:
            if key not in known:
                raise RecipeError("", f"expected a setting, got {key!r}; {nearest(key, known)}")
        return {key: Settings().check(known[key], value, key) for key, value in given.items()}
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from None


def _own(setting: Setting, staleness: float) -> Setting:
    steps = min(max(setting.steps, 4 * (1 + int(staleness))), 40)
    mode = "partial" if staleness else "sync"
    return replace(setting, mode=mode, staleness=staleness, shared=True, steps=steps)


def _scale(most: int, plans: Sequence[Plan], hardware: Hardware, work: Workload) -> list[Scale]:
    """Simulate the last plan's mode and split, on more and more devices with as many groups each."""
    from shuhari.desk.planning import choose

    last = plans[-1].setting
    sizes = [n for n in choose.SIZES if n < most] + [most]
    return choose.scale(sizes, last, hardware, work, split=last.sampling / last.devices, base=last.devices)


# -------------------------------------------------------------------- printing


def _say_measured(measured: Measured, known: Plan, work: Workload) -> None:
    hw, o = measured.hardware, known.outcome
    off = o.seconds / measured.seconds - 1
    say(f"measured: a step took {measured.seconds:.3g} s (the mean), planned with the same settings "
        f"{o.seconds:.3g} s ({off:+.0%})")  # fmt: skip
    say(f"decoding {1e3 * hw.step:.3g} ms a step and {1e6 * hw.row:.3g} us a row, reading {1e6 * hw.read:.3g} us a "
        f"token, training {1e6 * hw.train:.3g} us a token, {1e3 * hw.fixed:.3g} ms a step besides")  # fmt: skip
    say(f"answers: {work.written:.4g} tokens written, {work.tokens:.4g} trained, {work.size} a group"
        + (f"; tools take {_median(work.waits):.3g} s (median)" if work.waits else ""))  # fmt: skip
    for text in measured.notes:
        note(f"note: {text}")


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _say_plans(plans: Sequence[Plan], hardware: Hardware) -> None:
    rows = []
    for p in plans:
        o, s = p.outcome, p.setting
        alone = s.mode == "sync" or s.shared
        learns, behind = "the same" if alone else s.training, f"{o.staleness:.2f}, at most {o.staleness_max}"
        cells: list[Any] = [s.mode, s.sampling, learns, o.seconds, o.tokens, o.tokens / s.devices, behind]
        cells += [f"{o.idle:.0%}", o.rows]
        if hardware.price:
            cells += [p.cost, s.devices * hardware.price * o.seconds / 3600 * 1000]
        rows.append(cells)
    priced = ("a million tokens", "1,000 steps") if hardware.price else ()
    say()
    print_table((*COLUMNS, *priced), rows)
    best = max(plans, key=lambda p: p.outcome.tokens)
    if len(plans) > 1:
        slow = next((p for p in plans if p.setting.mode == "sync"), plans[0])
        say(f"most tokens a second: {best.setting.mode}, {best.outcome.tokens / slow.outcome.tokens:.2f} times "
            f"{slow.setting.mode}")  # fmt: skip


def _say_scales(scales: Sequence[Scale], last: Plan, setting: Setting, hardware: Hardware, work: Workload) -> None:
    from shuhari.desk.planning.choose import limits

    rows = [(s.devices, s.plan.outcome.seconds, s.plan.outcome.tokens, f"{s.efficiency:.0%}", f"{s.weights:.1%}",
             f"{s.driver:.1%}", f"{s.store:.1%}", s.bottleneck or "-") for s in scales]  # fmt: skip
    say()
    head = ("devices", "s a step", "tokens/s", "efficiency", "weights", "driver", "store", "bottleneck")
    print_table(head, rows, f"{last.setting.mode}, as many groups a device on each")
    found = limits(setting, hardware, work, last.setting.devices, scales[0].plan.outcome.seconds)
    ends = [f"{name} at about {n:,.0f} devices" for name, n in sorted(found.items(), key=lambda x: x[1]) if n < 1e12]
    say(
        "fills a step of its own: "
        + (", ".join(ends) or "nothing (weights, driver and store cost nothing: --set them)")
    )


def _to_json(
    run: str, measured: Measured, known: Plan, hardware: Hardware, work: Workload, plans: Sequence[Plan],
    scales: Sequence[Scale]
) -> dict[str, Any]:  # fmt: skip
    return {
        "run": run,
        "measured_seconds": measured.seconds,
        "planned_seconds": known.outcome.seconds,
        "notes": measured.notes,
        "hardware": asdict(hardware),
        "answers": {"written": work.written, "trained": work.tokens, "n": work.size},
        "plans": [_plan_json(p) for p in plans],
        "scale": [
            {**{k: v for k, v in vars(s).items() if k != "plan"}, **_plan_json(s.plan)}
            for s in scales
        ],
    }


def _plan_json(p: Plan) -> Mapping[str, Any]:
    outcome = {k: v for k, v in asdict(p.outcome).items() if k != "ends"}
    return {"setting": asdict(p.setting), "outcome": outcome, "cost": p.cost}


def _compare_published(json: bool) -> None:
    from shuhari.desk.planning.published import CASES, predict

    found: list[Predicted] = []
    for i, case in enumerate(CASES):
        if not json:
            note(f"{i + 1} of {len(CASES)}: {case.name}")
        found += predict(case)
    if json:
        print_json([{"case": p.case.name, "source": p.case.source, "assumed": p.case.assumed, "speeds_by": p.by,
                     "planned_seconds": (p.slow, p.fast), "published_seconds": p.case.seconds, "planned": p.speedup,
                     "published": p.case.speedup, "error": p.error} for p in found])  # fmt: skip
        return
    rows = [(p.case.name, p.by, f"{p.slow:.0f} / {p.fast:.0f}", " / ".join(f"{x:.0f}" for x in p.case.seconds if x),
             f"{p.speedup:.2f}", f"{p.case.speedup:.2f}", f"{p.error:+.0%}") for p in found]  # fmt: skip
    head = ("setting", "speeds by", "s a step, planned", "published", "speed-up, planned", "published", "error")
    print_table(head, rows)
    for source, assumed in dict.fromkeys((c.source, c.assumed) for c in CASES):
        say(f"{source}; assumed: {assumed}")
