"""`doctor`: describes this machine, or checks a run on disk, and repairs it on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import make_printable, note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.store import Report

DAMAGED = 1


READS = {"": "--json", "RUN": "--repair --json", "--cluster": "--address --json"}


def doctor(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run to look at: a path, a name under runs/, or `latest`.")] = "",
    repair: Annotated[bool, typer.Option("--repair", help="Change the run: set aside what is damaged.")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Say what each node of a Ray cluster has.")] = False,
    address: Annotated[str, typer.Option(help="Of the cluster: `auto` or host:port. Without, Ray is tried here.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe this machine, for bug reports; or check a run for damage, and with --repair set the damaged parts aside.

    With --cluster, show what each node of a Ray cluster has, and which of its versions differ from those here.

    Every row, every set of rows and every checkpoint of a run is read and compared with its checksum, also during
    training. Nothing is changed without --repair.

    Example: shuhari doctor runs/quickstart-s0
    """
    check_together(ctx, READS)
    if cluster:
        _describe_cluster(address, json)
    elif run:
        _examine(run, repair, json)
    else:
        _describe_machine(json)


def _examine(name: str, repair: bool, json: bool) -> None:
    from shuhari.store import StoreError, inspect_run, repair_run, resolve

    path = Path(name) if Path(name).is_dir() else resolve(name)  # also one without a database
    report = inspect_run(path)
    done: list[str] = []
    if repair and report.faults:
        try:
            done = repair_run(path)
        except StoreError as error:
            note(str(error))
    if json:
        from dataclasses import asdict

        goal = None if report.goal is None else report.goal.step
        print_json({**asdict(report), "goes_on_from": goal, "repaired": done})
    else:
        say(f"{path}: {', '.join(f'{n} {table}' for table, n in report.rows.items()) or 'no'} rows are whole")
        if report.checkpoints:
            rows = [(c.step, "whole" if not c.fault else make_printable(c.fault, 300)) for c in report.checkpoints]
            print_table(("checkpoint", ""), rows)
        for fault in report.faults:
            say(f"damaged: {make_printable(fault, 500)}")
        if report.running:
            say("it is being written by another process, up to the step that it had when it was looked at")
        for line in report.notes:
            say(line)
        for line in done:
            say(line)
        if not report.faults:
            say(f"all of it {'that can be told ' * bool(report.notes)}is as it was written")
        elif not done and not report.repairable:
            say(_explain_lost(report))
        elif not done:
            how = f"to go on from step {report.goal.step}" if report.goal else "to begin again"
            say(f"{how}: shuhari doctor {path} --repair (what is damaged is set aside, nothing is deleted)")
    if report.faults and not done:
        raise typer.Exit(DAMAGED)


def _explain_lost(report: Report) -> str:
    """Return why --repair could do nothing."""
    if "run.lock" in report.odd:
        return f"move {report.path / 'run.lock'} away and run this again: a repair needs the lock"
    return "no checkpoint is whole: the run cannot go on; where rows are whole, its metrics can be read"


def _describe_cluster(address: str, json: bool) -> None:
    from shuhari.desk.cluster import report_cluster

    found = report_cluster(address)
    if json:
        print_json(found)
    else:
        for node in found["nodes"]:
            offers = ", ".join(f"{name} {amount:g}" for name, amount in node["offers"].items())
            say(f"{make_printable(node['node'], 80)} ({node['id']}): it offers {offers}")
            if "error" not in node:
                versions = ", ".join(f"{k} {v or 'not there'}" for k, v in node["versions"].items())
                gpus = ", ".join(node["gpus"]) or "none"
                say(f"  {node['cores']} cores, {node['memory_gb']} GB, GPUs: {gpus}; {versions}")
        for line in found["differ"]:
            say(f"differs: {make_printable(line, 400)}")
        if not found["differ"]:
            say(f"all {len(found['nodes'])} have the versions that are here")
    if found["differ"]:
        raise typer.Exit(DAMAGED)


def _describe_machine(json: bool) -> None:
    from shuhari.desk.doctor import report

    found = report()
    if json:
        print_json(found)
        return
    for key, value in found.items():
        if not isinstance(value, dict):
            say(f"{key:<10} {value}")
            continue
        if key == "vllm":
            version = value["version"] or "not there: SHUHARI_VLLM_PYTHON names its interpreter"
            weights, tokens = value["right_from_weights"] / 1e6, value["right_from_tokens"]
            say(f"{key:<10} {version}; on a CPU it pays from {weights:g}M weights and answers of {tokens} tokens on")
            continue
        if key == "bfloat16":
            say(f"{key:<10} {value['advice']}")
            continue
        missing = [k for k, v in value.items() if v is None]
        there = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        none = f"; not there: {', '.join(missing)}" if missing and key == "packages" else ""
        say(f"{key:<10} {there}{none}")
