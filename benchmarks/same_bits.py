"""Do two commits do the same, bit for bit? Short runs of each side by side on this machine, and what came out.

    python benchmarks/same_bits.py 4ff1787          # that commit against the working tree
    python benchmarks/same_bits.py 4ff1787 HEAD     # against another commit
    python benchmarks/same_bits.py 4ff1787 --only grpo,areal
    python benchmarks/same_bits.py 4ff1787 --jobs 2   # two runs at a time

Digests of weights, of the ledger and of every reported number. They differ between processors, so none is kept. A
commit that moves or renames leaves them equal; one that changes them says why. If it renames a recipe or a setting, add
the old spelling to BEFORE: each side takes the first that its source can read. If it renames a metric, add that to
METRICS. Left out: timings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Schedules are said in steps: without `over` they follow a stage's length, which these runs change.
RATE = {"part.policy.optimiser.lr": {"from": 7e-4, "to": 7e-5, "over": 120, "warm": 6}}
WARM = {"stage.warm-up.part.policy.optimiser.lr": {"from": 2e-3, "to": 0, "after": 240, "over": 60, "warm": 15}}
SMALL = {"models.policy.hidden": 32, "models.policy.layers": 1, "models.policy.heads": 2, "buffer.size": 4,
         "rollout.n": 4, "evaluate.n": 16, "evaluate.samples": 2, "evaluate.every": 2, "steps": 4,
         "stage.warm-up.steps": 300, "stage.warm-up.buffer.size": 64, **WARM}  # fmt: skip
SHORT = {"stage.rl.steps": 3, "stage.warm-up.steps": 60, "stage.rl.evaluate.every": 3}
# with a warm-up long enough for rewards to differ, so that something is learnt
TINY = {**SMALL, "evaluate.every": 4, "steps": 3}
Spelling = tuple[str, Mapping[str, Any]]  # a recipe, and settings of it
RUNS: dict[str, Spelling] = {
    "grpo": ("baselines/grpo", {**SMALL, **RATE, "task.digits": 1}),
    "ppo": ("baselines/ppo", {"task.digits": 1, "steps": 3, "stage.warm-up.steps": 40, "evaluate.n": 16,
                              **WARM, **RATE}),
    "dpo": ("baselines/dpo", {**SMALL, **RATE, "task.digits": 1}),
    "deepsearch": ("rlvr/deepsearch", {**SMALL, "task.terms": 2, "curriculum.inner.pool": 16}),
    "areal": ("engine/areal", {**SMALL, "stage.rl.steps": 4}),
    "ghpo": ("curriculum/ghpo", {**SMALL, "task.terms": 3}),
    "tools": ("baselines/grpo_tools", {**SMALL, **RATE}),
    "cartpole": ("baselines/ppo_cartpole", {
        "steps": 3, "part.policy.optimiser.lr": {"from": 2e-3, "to": 0, "over": 97}}),
    "pendulum": ("baselines/ppo_pendulum", {"steps": 3}),
    "sac": ("baselines/sac_pendulum", {"env_steps": 1500}),
    "td3": ("baselines/td3_pendulum", {"env_steps": 1500}),
    "dqn": ("baselines/dqn_cartpole", {
        "env_steps": 1500, "rollout.sampling.epsilon": {"from": 1.0, "to": 0.04, "over": 500},
        "part.policy.optimiser.lr": {"from": 1e-3, "to": 0, "over": 3688}}),
    "gridworld": ("baselines/gridworld", {"steps": 5}),
    "clip_cov": ("rlvr/clip_cov", {**SHORT, "part.policy.terms.loss.fraction": 0.02, "buffer.size": 8}),
    "canon": ("rlvr/canon", {**TINY, "task.digits": 1}),
    "rlgf": ("data/rlgf", {**TINY, "task.terms": 2, "stage.teach.steps": 10}),
    "dots": ("curriculum/dots", {
        **{k: v for k, v in TINY.items() if k != "buffer.size"}, "task.terms": 2, "buffer.buffers.fresh.size": 4,
        "curriculum.of": 2, "curriculum.predictor.references": 4}),
    "hl_gauss": ("control/hl_gauss", {
        "env_steps": 1500, "rollout.sampling.epsilon": {"from": 1.0, "to": 0.04, "over": 500},
        "part.policy.optimiser.lr": {"from": 1e-3, "to": 0, "over": 3688}}),
    "prdc": ("offline/prdc", {"steps": 2, "evaluate.n": 8, "evaluate.every": 1, "buffer.data.episodes": 8}),
    "bgpo": ("diffusion/bgpo", SHORT),
    "prdp": ("diffusion/prdp", {"stage.rl.steps": 4, "stage.imitation.steps": 20, "evaluate.n": 16}),
    "sqirl": ("theory/sqirl", {
        "env_steps": 1000, "study.contexts": {"task.kwargs.side": [4, 4], "task.kwargs.distance": [1, 2]}}),
    "subnetworks": ("analysis/subnetworks", {**SHORT, "stage.rl.evaluate.every": 2}),
}  # fmt: skip
# name -> how else the run was spelt, the latest first, such as {"clip_cov": [("rlvr/clipcov", {"steps": 4})]}
BEFORE: dict[str, Sequence[Spelling]] = {
    "clip_cov": [("rlvr/clip_cov", {**SHORT, "surrogate.fraction": 0.02, "buffer.size": 8})],
}
# a regular expression of a metric's whole name before -> its name now, such as {r"policy/loss/clip": "policy/loss/ppo"}
METRICS: dict[str, str] = {}
GIT = ("git", "-C", str(ROOT), "worktree")
TIMES = ("seconds", "wall", "speed/", "engine/seconds", "problems")


def digest(values: Any) -> str:
    """Of a tree of arrays and plain values."""
    found = hashlib.blake2b(digest_size=8)

    def feed(x: Any) -> None:
        if isinstance(x, dict):
            for key in sorted(x, key=str):
                found.update(str(key).encode())
                feed(x[key])
        elif isinstance(x, list | tuple):
            for one in x:
                feed(one)
        elif hasattr(x, "detach"):
            found.update(x.detach().cpu().contiguous().numpy().tobytes())
        else:
            found.update(repr(x).encode())

    feed(values)
    return found.hexdigest()


def spell(name: str) -> list[Spelling]:
    """How a run is spelt, the newest first."""
    return [RUNS[name], *BEFORE.get(name, ())]


def one(name: str) -> dict[str, Any]:
    """The digests of one run, with whatever source is on the path: by the first spelling that this can read."""
    found: dict[str, Any] = {}
    for recipe, settings in spell(name):
        with tempfile.TemporaryDirectory() as folder:
            found = digest_run(recipe, settings, Path(folder) / name)
        if not found.get("error", "").startswith("RecipeError"):
            break
    return found


def digest_run(recipe: str, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The digests of one run; of a study, which has no policy of its own, those of its reports."""
    import shuhari

    try:
        done = shuhari.train(recipe, path, **settings)
        study = (done.path / "children").is_dir()
        weights = {} if study else dict(shuhari.load(done.path).model.module.state_dict())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    reports = [{k: v for k, v in r.items() if not k.startswith(TIMES)} for r in done.reports]
    ledger = {k: v for k, v in reports[-1].items() if k.startswith("spent/") and "seconds" not in k}
    names = sorted({k for r in reports for k in r if not k.startswith("spent/")})
    return {"weights": digest(weights), "ledger": digest(ledger),
            "reports": {k: digest([r.get(k) for r in reports]) for k in names}}  # fmt: skip


def measured(tree: Path, name: str) -> dict[str, Any]:
    """The digests of one run, in a process of its own with the source of `tree`."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, env=env)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}


def rename(metric: str) -> str:
    """A metric by its name now."""
    for before, now in METRICS.items():
        if re.fullmatch(before, metric):
            return re.sub(before, now, metric)
    return metric


def compare(old: dict[str, Any], new: dict[str, Any]) -> str:
    """ "same", or what differs."""
    if "error" in old or "error" in new:
        return "; ".join(f"{side} failed: {x['error']}" for side, x in (("old", old), ("new", new)) if "error" in x)
    out = [part for part in ("weights", "ledger") if old[part] != new[part]]
    before, after = ({rename(k): v for k, v in side["reports"].items()} for side in (old, new))
    both = before.keys() & after.keys()
    out += [k for k in sorted(both) if before[k] != after[k]]
    more = [f"-{k}" for k in sorted(before.keys() - both)]
    more += [f"+{k}" for k in sorted(after.keys() - both)]
    return ("differ: " + ", ".join(out) if out else "same") + (f" ({' '.join(more)})" if more else "")


def compare_run(trees: Sequence[Path], name: str) -> str:
    """ "same", or what differs between a run with the source of either tree."""
    old, new = (measured(tree, name) for tree in trees)
    return compare(old, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="a commit")
    parser.add_argument("new", nargs="?", help="another; left out, the working tree")
    parser.add_argument("--only", default="", help="names of runs, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each with both of its sides")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one)))
        return
    if not given.old:
        parser.error("expected a commit to compare with")
    names = given.only.split(",") if given.only else list(RUNS)
    if unknown := [n for n in names if n not in RUNS]:
        parser.error(f"no run {unknown[0]!r}: expected some of {', '.join(RUNS)}")
    with tempfile.TemporaryDirectory() as folder:
        trees = []
        for commit in (given.old, given.new):
            tree = ROOT if commit is None else Path(folder) / commit
            if commit is not None:
                subprocess.run([*GIT, "add", "-q", "--detach", str(tree), commit], check=True)
            trees.append(tree)
        try:
            differ = 0
            with ThreadPoolExecutor(given.jobs) as pool:
                for name, said in pool.map(lambda name: (name, compare_run(trees, name)), names):
                    differ += not said.startswith("same")
                    print(f"{name:12} {said}", flush=True)
        finally:
            for tree in trees:
                if tree != ROOT:
                    subprocess.run([*GIT, "remove", "--force", str(tree)], check=False)
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
