"""What training on some domains does to the accuracy on others, as a signed table (Can One Domain Help Others?, Li et
al. 2025, arXiv 2507.17512).

Left out: curricula by size with a refresh of the reference, rewards of parts, and other templates at the test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array, nearest
from shuhari.kernel.accuracy import estimate, find_rates
from shuhari.kernel.coverage import note_failures
from shuhari.kernel.findings import AnalysisError, Curves, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.run_names import SEED

JOINS, SPENT, APART = "+", "spent/tokens", 1.1


@register("run_analysis", "transfer_matrix")
@dataclass
class TransferMatrix:
    """What training on some domains does to the accuracy on each: a signed table.

    The first run is the start of all others. The name of each other says what it was trained on, domains joined by `+`
    (`runs/sums+grids-s3`); runs of the same domains are averaged. A run called as `control` was trained on all domains
    for their form alone. Numbers, for a run's domains S and each domain j: `S on j`, the accuracy less the start's, in
    [-1, 1]; of a run of several domains `S on j, more than its best`, that less the largest of the runs of one of
    these alone; with a control `S on j, beyond form`, the accuracy less the control's. The null of each is a second
    draw from the start in the place of the run. In the table a sign is `0` if the interval has 0 in it. Intervals:
    bootstrap over problems.
    """

    by: str = ""
    """Key of a problem's `info` that names its domain; empty: its task, of a mixture the name of its member."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """Name of a run -> its domains, joined by `+`; of a run that is not named, the last part of its path, without a
    seed."""
    control: str = "form"
    """What a run is called that was rewarded for the form of answers alone; there may be none."""
    n: Length = 192
    """Number of held-out problems, of all domains together."""
    samples: Length = 8
    """Answers that are drawn to each problem."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""
    split: str = "test"
    """Split of the problems."""

    reads: ClassVar[Reads] = "policies"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a single policy, a task of one domain, and a run called after no domain."""
        if len(given.names) < 2:
            raise AnalysisError("1 policy: expected a start, and runs called after the domains that they trained on")
        domains = self._find_domains(given)
        names = [self.trained.get(name) or SEED.sub("", Path(name.partition("@")[0]).name) for name in given.names[1:]]
        for name in names:
            for part in name.split(JOINS) if name != self.control else ():
                if part not in domains.values():
                    known = nearest(part, [*dict.fromkeys(domains.values()), self.control])
                    raise AnalysisError(f"a run is called {name!r}, {part!r} is no domain; {known} (setting trained)")
        every = given.sample(self.n, self.samples, temperature=self.temperature, split=self.split)
        (again,) = given.sample(self.n, self.samples, temperature=self.temperature, split=self.split, draw=1, which=[0])
        start, *later = map(find_rates, every)
        chance, of = find_rates(again) - start, np.array([domains[one] for one in every[0].ids])
        gains = {name: np.mean([x for x, own in zip(later, names, strict=True) if own == name], 0) - start
                 for name in dict.fromkeys(names)}  # fmt: skip
        rng, numbers, rows = given.draw_from("problems"), dict[str, Number](), []
        for name, gain in gains.items():
            for domain in dict.fromkeys(of.tolist()):
                here = of == domain
                own = estimate(gain[here], rng, "accuracy, to the start", float(chance[here].mean()))
                numbers[f"{name} on {domain}"] = own
                for key, other in self._list_others(name, gains, here).items():
                    numbers[f"{name} on {domain}, {key}"] = estimate((gain - other)[here], rng, "accuracy")
                rows.append((name, domain, find_sign(own), own.value, float(start[here].mean())))
        x = np.arange(len(gains))
        lines = {domain: (x, np.array([gain[of == domain].mean() for gain in gains.values()]))
                 for domain in dict.fromkeys(of.tolist())}  # fmt: skip
        panel = Panel(lines, f"trained on {', '.join(gains)}, in order", "accuracy, to the start", tuple(lines))
        return Finding(numbers, {"transfer": panel}, ("trained on", "tested on", "sign", "gain", "at the start"), rows,
                       [*note_failures(every), *note_unequal(given)])  # fmt: skip

    def _list_others(self, name: str, gains: Mapping[str, Array], here: Array) -> dict[str, Array]:
        """Return key -> [n], gains of the runs that one is compared with at the problems `here`."""
        alone = [gains[part] for part in name.split(JOINS) if part in gains and part != name]
        out = {"more than its best": max(alone, key=lambda gain: float(gain[here].mean()))} if len(alone) > 1 else {}
        if self.control in gains and name != self.control:
            out["beyond form"] = gains[self.control]
        return out

    def _find_domains(self, given: Given) -> dict[str, str]:
        """Return the id of each problem -> its domain."""
        with given.open(0) as opened:
            source = opened.ctx.task.problems(self.split)
            size = source.size()
            problems = [source[i] for i in range(self.n if size is None else min(self.n, size))]
        if self.by and (without := next((p for p in problems if self.by not in p.info), None)):
            known = nearest(self.by, without.info)
            raise AnalysisError(f"problem {without.id} has no {self.by!r} in its info; {known}")
        found = {p.id: str(p.info[self.by]) if self.by else p.task for p in problems}
        if len(set(found.values())) < 2:
            only = next(iter(found.values()))
            raise AnalysisError(f"all problems are of {only!r}: expected a mixture, or --set by=KEY of their info")
        return found


def find_sign(one: Number) -> str:
    """Return `+`, `-`, or `0` if the interval has 0 in it."""
    return "+" if one.low > 0 else "-" if one.high < 0 else "0"


def note_unequal(given: Given) -> list[str]:
    """Return a note if some of the runs behind the start have spent a tenth more tokens than others."""
    try:
        curves: Sequence[Curves] = given.read_curves()[1:]
        spent = [float(one.select_last(SPENT).read(SPENT)[1][-1]) for one in curves]
    except AnalysisError:
        return ["how many tokens runs have spent is unknown: a gain may be that of more training"]
    if max(spent) <= APART * min(spent) or not math.isfinite(max(spent)):
        return []
    return [f"runs have spent from {min(spent):,.0f} to {max(spent):,.0f} tokens: a gain may be that of more training"]
