"""Final returns, ours beside Stable-Baselines3's and d3rlpy's: is ours not worse on the same data and steps?

    python benchmarks/peers/run.py --only returns
    benchmarks/.peers/bin/python benchmarks/peers/returns.py --only IQL

Both sides train for the same environment steps (SAC, TD3) or updates on the same recorded episodes (IQL, TD3+BC, CQL:
a data set of its own for each seed). The last policy plays 50 episodes without noise, from the same start seeds. Not
worse: the 95 % interval of the difference of mean returns, ours less theirs, lies above -10 % of what lies between a
random policy and a scripted expert on these starts. The interval is paired by data set where there are such, else
Welch's. What results/returns.json already has is not trained again; to measure anew, delete it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from common import machine, publish, table  # noqa: E402

OUT = HERE.parent / "results" / "returns.json"
STARTS = range(50_000, 50_050)  # seeds of the episodes that count; nobody trains on them
LEAST = 5  # seeds
SHARE = 0.1  # of the gap between random and expert
ONLINE: dict[str, Any] = {"peer": "Stable-Baselines3", "env_steps": 10_000, "threads": 1}
OFFLINE: dict[str, Any] = {"peer": "d3rlpy", "threads": 1}
CASES: dict[str, dict[str, Any]] = {
    "SAC": {**ONLINE, "method": "sac", "recipe": "sac_pendulum"},
    "TD3": {**ONLINE, "method": "td3", "recipe": "td3_pendulum", "env_steps": 20_000},
    "IQL": {**OFFLINE, "method": "iql", "recipe": "iql_pendulum", "updates": 4_000},
    "TD3+BC": {**OFFLINE, "method": "td3_bc", "recipe": "td3_bc_pendulum", "updates": 10_000},
    "CQL": {**OFFLINE, "method": "cql", "recipe": "cql_pendulum", "updates": 6_400},
}
EXPLORATORY = ("TD3", "CQL")  # budget or method was changed after a first look at these seeds
HEAD = ("method", "peer", "budget", "ours: mean ± sd", "theirs", "difference [95 %]", "seeds", "verdict")
Act = Callable[[Any], Any]
"""observations [n, 3] -> torques [n, 1]"""


def judge(ours: Sequence[float], theirs: Sequence[float], gap: float, *, paired: bool) -> dict[str, Any]:
    """The difference of the means with its 95 % interval, and the verdict: `not worse`, `worse` or `not shown`. gap: of
    the returns of random and expert; paired: values of one place belong together, else the interval is Welch's.
    `too few seeds`: fewer than five."""
    from shuhari.kernel.stats import difference

    found, margin = difference(theirs, ours, paired=paired), SHARE * gap
    verdict = "not worse" if found.low > -margin else "worse" if found.high < -margin else "not shown"
    if found.n < LEAST:
        verdict = "too few seeds"
    return {"difference": found.value, "low": found.low, "high": found.high, "margin": margin, "verdict": verdict}


def play(act: Act) -> float:
    """The mean return over the start seeds."""
    import gymnasium
    import numpy as np

    envs = [gymnasium.make("Pendulum-v1") for _ in STARTS]
    seen = np.stack([env.reset(seed=s)[0] for env, s in zip(envs, STARTS, strict=True)])
    total, going = 0.0, True
    while going:  # all end at the same time limit
        steps = [env.step(a) for env, a in zip(envs, np.asarray(act(seen), np.float32), strict=True)]
        seen, going = np.stack([s[0] for s in steps]), not steps[0][3]
        total += sum(float(s[1]) for s in steps)
    return total / len(envs)


def references() -> dict[str, float]:
    """Returns of a random policy and of the scripted expert."""
    import numpy as np

    from shuhari.buffers.experts import swing_up

    rng = np.random.default_rng(0)
    chance = play(lambda seen: rng.uniform(-2, 2, (len(seen), 1)))
    return {"random": chance, "expert": play(lambda seen: np.stack([swing_up(o, rng) for o in seen]))}


def ours(case: dict[str, Any]) -> tuple[Act, int]:
    """(the trained policy, updates)."""
    import offline
    import torch

    from shuhari.loop.run import loop

    budget = {"steps": case["updates"] // offline.TICK} if "updates" in case else {"env_steps": case["env_steps"]}
    run = offline.open_ours(case, **budget)
    for _ in loop(run):
        pass
    policy = run.ctx.models["policy"]

    def act(seen: Any) -> Any:
        with torch.no_grad():
            return policy.decide(torch.from_numpy(seen))["action"].numpy()

    return act, next(iter(run.stage.learners.values())).state["updates"]


def theirs(case: dict[str, Any]) -> tuple[Act, int]:
    import control
    import offline

    if "updates" in case:
        data, learner = offline.open_theirs(case, case["updates"])
        offline.fit(learner, data, case["updates"])
        return lambda seen: 2 * learner.predict(seen), case["updates"]
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env("Pendulum-v1", n_envs=1, seed=case["seed"])
    model = control.MODELS[case["method"]](env, {"net_arch": [64, 64]}, 1e-3, case["seed"])
    model.learn(case["env_steps"], log_interval=None)
    return lambda seen: model.predict(seen, deterministic=True)[0], int(model._n_updates)


def measure(case: dict[str, Any], side: str) -> dict[str, Any]:
    """One run: its return, what it cost, and the updates that were made."""
    began = time.process_time()
    act, updates = {"ours": ours, "theirs": theirs}[side](case)
    seconds = time.process_time() - began
    return {"seed": case["seed"], "side": side, "return": play(act), "updates": updates, "cpu_s": round(seconds, 1)}


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each case that has at least two seeds of both sides: the values by seed, and the judgement."""
    out = []
    for name in [n for n in CASES if n in found["runs"]]:
        runs = found["runs"][name]
        by = {s: {r["seed"]: r["return"] for r in runs if r["side"] == s} for s in ("ours", "theirs")}
        seeds = sorted(by["ours"].keys() & by["theirs"].keys())
        if len(seeds) > 1:
            values = {s: [by[s][k] for k in seeds] for s in by}
            gap = found["expert"] - found["random"]
            told = judge(values["ours"], values["theirs"], gap, paired=CASES[name]["peer"] == "d3rlpy")
            out.append({"case": name, "seeds": seeds, **values, **told})
    return out


def row(found: dict[str, Any]) -> tuple[str, ...]:
    from statistics import mean, stdev

    case = CASES[found["case"]]
    budget = f"{case['updates']:,} updates" if "updates" in case else f"{case['env_steps']:,} env steps"
    sides = (f"{mean(found[s]):.0f} ± {stdev(found[s]):.0f}" for s in ("ours", "theirs"))
    difference = f"{found['difference']:+.0f} [{found['low']:+.0f}, {found['high']:+.0f}]"
    verdict = f"{found['verdict']}{', exploratory' if found['case'] in EXPLORATORY else ''}"
    return found["case"], case["peer"], budget, *sides, difference, str(len(found["seeds"])), verdict


def lines(found: dict[str, Any]) -> list[str]:
    """The table and what it is held to."""
    margin = SHARE * (found["expert"] - found["random"])
    told = f"Random {found['random']:.0f}, expert {found['expert']:.0f}: the interval has to lie above -{margin:.0f}."
    return [*table(HEAD, *map(row, found["cases"])), "", told]


def main() -> None:
    parser = argparse.ArgumentParser(description="Final returns beside the peers'.")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON goes")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    old = json.loads(args.out.read_text()) if args.out.exists() else {"runs": {}, **references()}
    versions = machine(1)["versions"] | _peers()
    found: dict[str, Any] = {**old, "machine": {**machine(1), "versions": versions}, "settings": CASES}
    for seed in args.seeds:  # every case first, so that what is cut short has something of each
        for name, case in CASES.items():
            runs = found["runs"].setdefault(name, [])
            for side in ("ours", "theirs"):
                if args.only in name and not any(r["seed"] == seed and r["side"] == side for r in runs):
                    runs.append(measure({**case, "seed": seed}, side))
                    print(name, runs[-1], flush=True)
                    found["cases"] = summary(found)
                    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(*lines(found), sep="\n")
    if args.out == OUT:
        publish("returns", lines(found))


def _peers() -> dict[str, str]:
    from importlib.metadata import version

    return {p: version(p) for p in ("stable-baselines3", "d3rlpy", "gymnasium")}


if __name__ == "__main__":
    main()
