"""Trains runs side by side that share their answers: SAPO's nodes (Amico et al. 2025, arXiv 2509.08721).

Each node is a run with its own policy, problems and verifier; they share text, no weights (`shared_groups`). They take
turns, a step each, so a node sees the answers of the previous round, and a swarm is reproducible. Nodes on several
machines need no study: each is a run whose `curriculum.folder` lies on a shared disk.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shuhari.bounds import Length, check
from shuhari.data import EMPTY, Info, code
from shuhari.kernel.registry import register
from shuhari.ports import Runs, ability

REWARD = "curriculum/own_reward"  # reported by the curriculum `shared_groups`


@register("study", "swarm")
@dataclass
class Swarm:
    """Trains several runs side by side that share their answers as text (SAPO), a step each in turn.

    The first has the study's seed; the others have other seeds, and so other problems and samples. Yields a row per
    round: `study/round`; `study/reward`, the sum over nodes of the mean reward of their own answers, without shared
    ones; `study/total`, its sum over rounds; and the means over nodes of each number of `means` reported in that round.
    Raises ValueError unless there is one value per node.
    """

    nodes: Length = 4
    """Number of runs trained side by side."""
    differ: Mapping[str, tuple[Any, ...]] = EMPTY
    """Setting -> its value in each run, one for each; empty if only their seeds differ."""
    means: tuple[str, ...] = ()
    """Names of reported numbers whose mean over runs is reported too."""

    def __post_init__(self) -> None:
        check(self)
        for key, values in self.differ.items():
            if len(values) != self.nodes:
                raise ValueError(f"swarm: {key} has {len(values)} values: expected one for each of {self.nodes} nodes")

    def __call__(self, runs: Runs) -> Iterator[Info]:
        names = [f"node-{k}" for k in range(self.nodes)]
        going = [runs.train(name, self.settings(k, name, runs)) for k, name in enumerate(names)]
        said = [
            {int(row["step"]): row for row in runs.reports(name)}
            for name in names
        ]
        total, round = 0.0, 0
        try:
            while True:
                round += 1
                for run, rows in zip(going, said, strict=True):
                    yield from _go(run, rows, round)
                here = [rows[round] for rows in said if round in rows]
                if not here:
                    return
                row: dict[str, float] = {"study/round": round}
                latest = [rows[min(round, max(rows))] for rows in said if rows]
                for name in dict.fromkeys(
                    n
                    for r in latest
                    for n in r
                    if n.startswith("spent/")
                ):
                    row[name] = sum(r[name] for r in latest if r.get(name) is not None)
                for name in self.means:
                    if values := [r[name] for r in here if r.get(name) is not None]:
                        row[name] = sum(values) / len(values)
                if rewards := [r[REWARD] for r in here if r.get(REWARD) is not None]:
                    total += sum(rewards)
                    row |= {"study/reward": sum(rewards), "study/total": total}
                yield row
        finally:
            for run in going:
                ability(run, "close")()

    def settings(self, k: int, name: str, runs: Runs) -> dict[str, Any]:
        """Returns the settings of node k."""
        own = {"seed": code(runs.seed, name) % 2**31} if k else {}
        differ = {key: values[k] for key, values in self.differ.items()}
        return {**own, **differ, "curriculum.node": name, "curriculum.folder": str(runs.folder)}


def _go(run: Generator[Info, None, Any], rows: dict[int, Info], round: int) -> Iterator[Info]:
    """Continues a run until it has done a round; a killed run may repeat some that it had reported."""
    while round not in rows:
        report = next(run, None)
        if report is None:
            return
        rows[int(report["step"])] = report
        yield report
