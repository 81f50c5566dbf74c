"""The progress display of `train`: a panel on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuhari.desk.cli.diagnosing import describe_finding
from shuhari.desk.cli.text import format_number, make_console, make_printable, make_text, note, say

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe

QUIET = 5.0  # seconds between two lines if the output is not a terminal


class Live:
    """Shows reports; a context manager. The panel keeps the last held-out score, with its step, until a new one comes;
    a line shows only that of its own step. Other values that are not reported every step stay until the stage ends."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        from shuhari.lab.diagnosis import Watch

        self.watch = Watch({"stage": recipe.stages})
        self.console = make_console()
        self.eta = Eta(recipe.stages)
        self.path = path
        self.title = f"{recipe.name}  seed {recipe.seed}  {path}"
        self.total = recipe.total
        self.panel: Any = None
        self.seen: dict[str, Any] = {}
        self.scored = 0, "held-out"  # the step and the label of the last held-out score
        self.stage = ""
        self.shown: set[str] = set()
        self.last = float("-inf")
        self.started = False

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the panel, leaving it on the screen; may be called twice."""
        if self.panel is not None:
            self.panel.stop()
            self.panel = None

    def show(self, report: Mapping[str, Any]) -> None:
        """Show one step's report."""
        if not self.started:
            self._start()
        for key, word in (("imitates", "imitates "), ("grades", "score: ")):
            if report.get(key) and report.get("stage") != self.stage:
                note(f"stage {report['stage']}: {word}{report[key]}")
        for problem in report.get("problems", ()):
            if problem not in self.shown and len(self.shown) < 20:
                self.shown.add(problem)
                note(f"step {report['step']}: {make_printable(problem, 500)}")
        for finding in self.watch.add(report):
            note(describe_finding("alarm", finding, self.path))
        cells = self.format_cells(report)
        if self.panel is not None:
            self.panel.update(self._make_table(cells))
        elif "evaluate/greedy" in report or time.monotonic() - self.last > QUIET:
            self.last = time.monotonic()
            say("  ".join(f"{k} {v}" for k, v in cells.items()))

    def _start(self) -> None:
        self.started = True
        if not self.console.is_terminal:
            say(self.title)
            return
        from rich.live import Live as Panel

        self.panel = Panel(console=self.console, refresh_per_second=4, transient=False)
        self.panel.start()

    def format_cells(self, report: Mapping[str, Any]) -> dict[str, str]:
        """Return the cells of the panel: label -> text."""
        from shuhari.lab.plot import choose_curves, name_metric

        self.eta.add(report)
        total = f"/{self.total}" if self.total else ""
        out = {"step": f"{report['step']}{total}", "stage": str(report.get("stage", ""))}
        if out["stage"] != self.stage:  # a stage may report other metrics
            self.seen = {k: v for k, v in self.seen.items() if k == "held-out"}
        self.stage = out["stage"]
        for label, name in choose_curves(report).items():
            self.seen[label] = report[name]
            if label == "held-out":
                self.scored = int(report["step"]), name_metric(name, str(report.get("measure", "")))
        for label, value in self.seen.items():
            if label == "held-out":
                step, label = self.scored
                if step != report["step"] and self.panel is None:
                    continue
                label = label if step == report["step"] else f"{label}, step {step}"
            if value == value:  # NaN: nothing graded
                out[label] = format_number(value)
        if share := report.get("rollout/ungraded"):
            out["ungraded"] = f"{share:.0%}"
        if (rate := self.eta.estimate_rate()) is not None:
            out["tokens/s" if "spent/tokens" in report else "decisions/s"] = f"{rate:,.0f}"
        if (left := self.eta.estimate_left()) is not None:
            out["ETA"] = format_time(left)
        return out

    def _make_table(self, cells: Mapping[str, str]) -> Any:
        from rich.panel import Panel
        from rich.table import Table

        grid = Table.grid(*([""] * len(cells)), padding=(0, 2))
        grid.add_row(*(make_text(name, "dim") for name in cells))
        grid.add_row(*(make_text(value, "bold") for value in cells.values()))
        return Panel(grid, title=make_text(self.title), title_align="left", expand=False)


class Eta:
    """Estimates a run's speed and remaining time from its reports since this process started.

    A stage counts in proportion to its steps, or all stages equally if a budget is in another unit.
    """

    def __init__(self, stages: Sequence[Mapping[str, Any]]) -> None:
        from shuhari.config.overlay import read_budgets

        self.budgets = {s["name"]: read_budgets(s) for s in stages}
        steps = [b.get("steps") for b in self.budgets.values()]
        self.weight = dict(zip(self.budgets, [s or 0 for s in steps] if all(steps) else [1] * len(steps), strict=True))
        self.entered: dict[str, Mapping[str, Any]] = {}  # stage -> the report before it
        self.points: list[tuple[float, float, float]] = []  # seconds, share done, decisions; the first and the last few
        self.before: Mapping[str, Any] = {}

    def add(self, report: Mapping[str, Any]) -> None:
        stage = str(report.get("stage", ""))
        if stage in self.budgets and stage not in self.entered:
            self.entered[stage] = self.before if self.before or stage == next(iter(self.budgets)) else report
        self.before = report
        point = float(report["seconds"]), self.estimate_done(report), float(report.get("spent/decisions", 0))
        self.points = [*self.points[:1], *self.points[1:][-20:], point]

    def estimate_done(self, report: Mapping[str, Any]) -> float:
        """Return the completed share of the run, in [0, 1]."""
        stage, whole = str(report.get("stage", "")), sum(self.weight.values())
        share = 0.0
        for name, budget in self.budgets.items():
            if name == stage:
                start = self.entered.get(stage, {})
                spent = [(_find_spent(report, b) - _find_spent(start, b)) / allowed if allowed else 1.0
                         for b, allowed in budget.items()]  # fmt: skip
                return float((share + self.weight[name] * min(1.0, max(spent, default=0.0))) / whole)
            share += self.weight[name]
        return 0.0

    def estimate_left(self) -> float | None:
        """Return the seconds until the end; None before two steps are made."""
        if len(self.points) < 2:
            return None
        recent = self.points[-min(len(self.points), 20) :]
        seconds, share = recent[-1][0] - recent[0][0], recent[-1][1] - recent[0][1]
        return None if share <= 0 else seconds * (1 - recent[-1][1]) / share

    def estimate_rate(self) -> float | None:
        """Return the decisions a second of the last steps; None if nothing is collected."""
        recent = self.points[-min(len(self.points), 20) :]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return (recent[-1][2] - recent[0][2]) / (recent[-1][0] - recent[0][0]) or None


def _find_spent(report: Mapping[str, Any], budget: str) -> float:
    return float(report.get("seconds" if budget == "seconds" else f"spent/{budget}", 0))


def format_time(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
