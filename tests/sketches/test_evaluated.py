"""An evaluation says of a run what papers of decoding, transfer and risk ask of it, and changes nothing of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evaluated
import pytest

import shuhari
from shuhari.lab.claims.quantities import Evidence, Gain
from shuhari.ports import Metric, Rollout

metric: Metric = evaluated.Agreement("start")
rollout: Rollout = evaluated.Vote()
HERE = evaluated.__file__

RECIPE = f"""
steps = 2
threads = 1
task = {{name = "arithmetic", digits = 1}}
models.policy = {{use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}}
models.start.init = "policy"
rollout = {{n = 4, sampling.max_new = 3}}
buffer.size = 4
collect.advantage = {{}}
reward.short = {{use = "{HERE}:short"}}
part.policy = {{terms.loss = {{use = "clip"}}, optimiser.lr = 0.05}}
[evaluate]
every = 1
n = 8
samples = 2
tail = [0.5]
fresh = true
task.name = "mixture"
task.tasks.seen = {{name = "arithmetic", digits = 1}}
task.tasks.carry = {{name = "arithmetic", digits = 2, weight = 0.0}}
more.vote = {{rollout = {{use = "{HERE}:Vote", of = 3}}}}
metrics.agreement = {{use = "{HERE}:Agreement", other = "start"}}
metrics.exact = {{n = 8, against = ["start"]}}
metrics.weights = {{}}
"""


def test_decoding_transfer_tails_and_metrics_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(RECIPE)
    run = shuhari.train(tmp_path / "own.toml", tmp_path / "run")
    before, last = run.summary["before"], run.reports[-1]
    assert before["agreement.same"] == 1.0 and before["weights.changed"] == before["weights.distance"] == 0.0
    assert last["evaluate/weights.changed"] > 0.5
    told = ("greedy@carry", "exact.pass@8@seen", "cvar@0.5", "vote.mean@seen", "mean.short", "cvar@0.5.short")
    assert {f"evaluate/{name}" for name in told} <= set(last)
    assert last["evaluate/vote.tokens"] > 2 * last["evaluate/tokens"]
    spent = {k: v for k, v in last.items() if k.startswith("spent/")}
    (tmp_path / "bare.toml").write_text(RECIPE.partition("[evaluate]")[0])
    bare: Any = shuhari.train(tmp_path / "bare.toml", tmp_path / "bare").reports[-1]
    assert {k: v for k, v in spent.items() if "evaluate" not in k} == {k: bare[k] for k in spent if "evaluate" not in k}
    assert bare["policy/loss/clip"] == last["policy/loss/clip"]
    columns = {k: [r.get(k) for r in run.reports] for k in ("evaluate/vote.mean", "evaluate/mean")}
    gain = Gain("evaluate/vote.mean:final", "evaluate/mean:final")
    assert gain(Evidence(0, columns, [1.0, 2.0], {}, 2.0)) == pytest.approx(
        last["evaluate/vote.mean"] - last["evaluate/mean"]
    )
