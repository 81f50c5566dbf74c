"""Every registered component, in a real run: some steps, save, restore in another process, go on; not a bit may differ.

A component comes under test by standing in one of the recipes here (or in `small_runs`), with whatever state it has; a
component without state shows that it needs none, since the restored one is new while the other has lived. A component
that no recipe uses fails `test_every_component_is_covered`: add it to one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import shuhari.loop.run
import small_runs
from shuhari.batch import Batch
from shuhari.config.build import stage_components
from shuhari.config.recipe import Recipe, load
from shuhari.loop import state
from shuhari.loop.run import Run
from shuhari.ports import Ctx
from shuhari.registry import entries
from shuhari.store.codec import dumps, loads
from small_runs import differences, kept, plain

pytestmark = pytest.mark.timeout(300)  # all runs are made once, before the first test
LANGUAGE = """
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {n = 4, sampling = {max_new = 4}}
part.policy.optimiser.lr = 1e-2
"""
MORE = {  # what `small_runs` has not
    "tokens": f"""# PPO on tokens with demonstrations beside
steps = 4
task = {{name = "countdown", count = 2}}
{LANGUAGE}
models.critic = {{use = "causal_value", init = "policy", hidden = 16, layers = 1, heads = 2, intermediate = 16}}
models.reference.init = "policy"
buffer = {{use = "mixture", buffers.rl = {{use = "fresh", size = 3}}, buffers.ce = {{use = "demos", size = 4}}}}
transform.kl_in_reward = {{}}
transform.overlong = {{length = 4, cache = 2}}
transform.finished = {{}}
transform.gae = {{bootstrap_truncated = true}}
part.policy.terms = {{clip = {{}}, nll = {{stream = "ce"}}, divergence = {{form = "exact"}}}}
part.critic = {{terms.value.clip = 0.2, optimiser.lr = 1e-2}}
""",
    "gaussian": """# PPO in a continuous world
steps = 4
task = {name = "gym/Pendulum-v1", kwargs.max_episode_steps = 15}
models.policy = {use = "gaussian", hidden = [8]}
models.critic = {use = "value", hidden = [8]}
rollout = {use = "vector", lanes = 2}
buffer.size = 20
transform.gae = {}
part.policy = {terms.clip = {}, optimiser.lr = 1e-2}
part.critic = {terms.value = {}, optimiser.lr = 1e-2}
""",
    "td3": """# delayed policy and targets
steps = 8
task = {name = "gym/Pendulum-v1", kwargs.max_episode_steps = 15}
models.policy = {use = "deterministic", hidden = [8]}
models.critic = {use = "q_continuous", hidden = [8]}
models.target.init = "critic"
models.target_policy.init = "policy"
rollout = {use = "vector", lanes = 2, random = 10}
buffer = {use = "replay", capacity = 60, size = 8, collect = 6, warmup = 8}
part.critic = {terms.smoothed_td = {}, optimiser.lr = 1e-2}
part.policy = {every = 2, after = 1, terms.deterministic = {}, optimiser = {use = "rmsprop", lr = 1e-2}}
follow.target = {of = "critic", every = 2}
follow.target_policy = {of = "policy", every = 2}
""",
    "file": f"""# imitation of a file, walked round and round
steps = 4
task = {{name = "file/sums.jsonl", test_fraction = 0.4}}
{LANGUAGE}
buffer = {{use = "demos", size = 4}}
part.policy.terms.nll.stream = "ce"
reward.length.use = "{__file__}:length"
[evaluate]
every = 2
""",
    "preferred": """# preferences out of graded groups
steps = 4
task.name = "bandit"
models.policy = {use = "tabular"}
models.reference.init = "policy"
rollout.n = 6
buffer.size = 3
transform.pairs.per_group = 2
transform.labels = {}
part.policy = {terms = {preference = {}, kto = {}}, optimiser.lr = 1e-2}
""",
    "prolonged": """# the reference and the optimiser start anew wherever the score does not rise
steps = 8
task.name = "bandit"
models.policy = {use = "tabular"}
models.reference.init = "policy"
rollout.n = 4
buffer.size = 2
collect.advantage = {}
part.policy = {terms = {clip = {}, divergence = {}}, optimiser = {lr = 0.1, reset = {on = "plateau", patience = 1}}}
follow.reference = {use = "copy", on = "plateau", patience = 1}
evaluate = {every = 1, n = 1}
""",
    "inferred": f"""# problems whose success is inferred from a few that are probed; half of a batch replayed
steps = 6
task = {{name = "arithmetic", kind = "carry", digits = 1}}
{LANGUAGE}
models.embed.init = "policy"
curriculum.use = "target"
curriculum.pick = "sample"
curriculum.of = 4
curriculum.ahead = 2
curriculum.tau = 0.1
curriculum.candidates.pool = 24
curriculum.predictor = {{use = "attention", references = 6, role = "embed", fits = 3}}
buffer = {{use = "mixture", buffers.fresh = {{use = "fresh", size = 3}}, buffers.old = {{use = "groups", size = 3}}}}
collect.advantage = {{}}
part.policy.terms.clip = {{}}
""",
    "regressed": f"""# log-ratios on rewards, shorter answers, what was failed; the optimiser forgets after each step
steps = 4
task = {{name = "arithmetic", kind = "carry", digits = 1}}
{LANGUAGE}
curriculum.use = "target"
curriculum.pick = "failed"
curriculum.candidates.pool = 40
curriculum.reward = "reward/score"
curriculum.predictor.use = "beta"
curriculum.predictor.reward = "reward/score"
reward.length.weight = {{from = 0.1, to = 0.5, over = 2}}
reward.weights.score = 1.0
reward.weights.length = 1.0
engine = {{staleness = 1, virtual.train = 0.04}}
buffer.size = 3
collect = {{latest = {{}}, advantage.scale = "none"}}
part.policy.terms.log_ratio.reduce = "row"
part.policy.optimiser.reset.on = "step"
""",
    "credited": f"""# tokens weighted by a model of outcomes; values of the random policy
steps = 4
task = {{name = "arithmetic", kind = "carry", digits = 1}}
{LANGUAGE}
buffer.size = 3
reward.odd.use = "{__file__}:odd"
collect.advantage.scale = "none"
transform.credit = {{}}
part.credit = {{terms.outcome = {{stream = "credit", reduce = "row"}}, optimiser.lr = 1e-2}}
part.policy.minibatches = 2
part.policy.terms.uniform_q = {{}}
part.policy.terms.pos = {{use = "clip", behaviour = "present", stream = "pos"}}
[models.credit]
use = "causal_value"
init = "policy"
after = true
hidden = 16
layers = 1
heads = 2
intermediate = 16
""",
    "recorded": f"""# preferences in a file, walked round and round
steps = 4
task = {{name = "file/sums.jsonl", test_fraction = 0.4}}
{LANGUAGE}
models.reference.init = "policy"
buffer = {{use = "preferences", size = 4}}
part.policy.terms.preference = {{}}
""",
    "games": """# several turns in two kinds of game
steps = 4
task = {name = "mixture", tasks.shop = {turns = 2}, tasks.large = {name = "shop", items = 3, turns = 2, weight = 2.0}}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {use = "episode", n = 2, sampling.max_new = 4}
buffer.size = 3
collect.advantage = {}
part.policy = {terms.clip = {}, optimiser.lr = 1e-2}
""",
    "hinted": """# hints, and demonstrations of the same prompts
steps = 4
task = {name = "chain", terms = 2}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {use = "demonstrated", of = {use = "hint_curve", rounds = 2}, n = 4, sampling.max_new = 4}
buffer.size = 3
collect.advantage = {apart = "demo", scale = "none"}
part.policy = {terms.mixed_policy = {}, optimiser.lr = 1e-2}
evaluate = {every = 2, n = 2, rollout.use = "hint_ladder"}
""",
    "trees": f"""# tree searches in flight over steps, and a cache of what they found
steps = 4
task = {{name = "arithmetic", kind = "add", digits = 1}}
models.policy = {{use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}}
engine = {{staleness = 1, virtual = {{decode = 0.01, train = 0.1}}}}
rollout = {{use = "tree", n = 4, width = 3, depth = 2, reward = "length", sampling.max_new = 4}}
curriculum = {{use = "cache", rate = 1.0, reward = "length", inner = {{use = "sequential", pool = 8}}}}
buffer.size = 3
collect.node_advantage = {{}}
reward.length.use = "{__file__}:length"
part.policy = {{terms.clip.behaviour = "old", optimiser.lr = 1e-2}}
[evaluate]
every = 2
n = 4
rollout.use = "single"
""",
    "selective": f"""# other losses on a chosen few, and answers that repeat themselves
steps = 4
task.name = "sparks"
{LANGUAGE}
buffer.size = 3
collect.advantage.scale = "raw"
reward = {{repetition.unit = "character", weights = {{score = 1.0, repetition = 1.0}}}}
part.policy.minibatches = 2
part.policy.terms = {{clip_cov.fraction = 0.2, kl_cov.fraction = 0.2, lp_reg.fraction = 0.5}}
""",
    "puzzles": f"""# samples of puzzles
steps = 2
task.name = "reasoning-gym/chain_sum"
{LANGUAGE}
buffer.size = 2
reward = {{weights.score = 1.0, maths.timeout = 60.0}}
part.policy.terms.entropy = {{}}
""",
}
ROWS = [
    {"prompt": f"{i}+1=", "answer": str(i + 1), "solution": str(i + 1), "chosen": str(i + 1), "rejected": str(i)}
    for i in range(9)
]
BEFORE = 2  # steps before the save, or half of them where there are fewer than four
OUTSIDE = {"study", "analysis", "quantity"}  # the first drives whole runs, the others read or need none


@dataclass
class Counting:
    """Adds to each advantage how often it was called; `honest`: the count is in the state."""

    honest: bool = False
    needs: tuple[()] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"calls": 0})

    def __post_init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        self.state["calls"] += self.honest
        self.calls += not self.honest
        return batch.put({"advantage": batch["advantage"] + self.state["calls"] + self.calls})


def length(completions: list[str]) -> list[float]:
    """A reward of one's own."""
    return [float(len(text)) for text in completions]


def odd(completions: list[str]) -> list[float]:
    """Right half of the time, whoever says it."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def recipes(folder: Path) -> dict[str, Recipe]:
    """Every recipe of this test, its files in `folder`."""
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    texts = {**small_runs.ALL, **MORE}
    for honest in ("true", "false"):
        counting = f'[collect.counting]\nuse = "{__file__}:Counting"\nhonest = {honest}\n'
        texts[f"honest-{honest}"] = small_runs.BANDIT.replace("steps = 12", "steps = 4") + counting
    if find_spec("reasoning_gym") is None:
        del texts["puzzles"]
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text.replace('"file/sums', f'"file/{folder}/sums'))
    return {name: small_runs.often(load(folder / f"{name}.toml")) for name in texts}


# ---------------------------------------------------------------- two processes


def steps(recipe: Recipe, path: Path) -> tuple[Run, Iterator[Any]]:
    """A run as it stands at `path`, and the reports of its loop."""
    run = shuhari.loop.run.open_run(recipe, path)
    return run, shuhari.loop.run.loop(run)


def attributes(run: Run) -> dict[str, Any]:
    """path.attribute -> value, of every component and of all that the codec can write: also what is in no state."""
    out = {}
    for path, component in state.walk({s.name: s.memories() for s in run.progress.stages}):
        for name, value in getattr(component, "__dict__", {}).items():
            if value is None and getattr(type(component), name, 0) is None:  # a default, set or not
                continue
            try:
                out[f"{path}.{name}"] = plain(loads(dumps(value)))
            except TypeError:  # modules, functions, other components
                continue
    return out


def go_on(folder: Path) -> None:
    """In the other process: every run there, from its checkpoint to its end."""
    torch.set_num_threads(1)
    for name, recipe in recipes(folder).items():
        run, reports = steps(recipe, folder / "restored" / name)
        said = [plain(r) for r in reports]
        (folder / "restored" / name / "said.bin").write_bytes(dumps({"reports": said, "attributes": attributes(run)}))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """recipe -> where the run that went on and the run that was restored differ."""
    folder = tmp_path_factory.mktemp("state")
    source = str(Path(shuhari.__file__).parents[1])
    path = (source, str(Path(small_runs.__file__).parent), os.environ.get("PYTHONPATH"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with subprocess.Popen(  # it imports while this process works
        [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as other:
        lived = live(folder)
        _, errors = other.communicate(str(folder))
    assert other.returncode == 0, errors[-3000:]
    out = {}
    for name, mine in lived.items():
        theirs = loads((folder / "restored" / name / "said.bin").read_bytes())
        for report in (*mine["reports"], *theirs["reports"]):
            del report["json"]["seconds"]
        assert mine["reports"], f"{name} made no step after it was restored"
        out[name] = differences(mine, theirs)
        out[name] += differences(kept(folder / "lived" / name), kept(folder / "restored" / name))
    torch.set_num_threads(threads)
    return out


def live(folder: Path) -> dict[str, Any]:
    """Every run from start to end, with a copy of what was saved on the way: recipe -> what it said since."""
    lived: dict[str, Any] = {}
    for name, recipe in recipes(folder).items():
        run, reports = steps(recipe, folder / "lived" / name)
        for _ in range(min(BEFORE, recipe.total // 2) if recipe.total else BEFORE):
            next(reports)
        shutil.copytree(folder / "lived" / name, folder / "restored" / name)
        lived[name] = {"reports": [plain(r) for r in reports], "attributes": attributes(run)}
    return lived


# ---------------------------------------------------------------- the tests


@pytest.mark.parametrize("name", [*small_runs.ALL, *MORE, "honest-true"])
def test_a_restored_run_goes_on_as_if_nothing_had_been(name: str, found: dict[str, list[str]]) -> None:
    if name not in found:
        pytest.skip("reasoning-gym is not installed")
    assert not found[name], "\n".join(found[name][:20])


def test_what_is_kept_outside_of_the_state_is_found(found: dict[str, list[str]]) -> None:
    where = [place for place in found["honest-false"] if ".calls" in place]
    assert where and any("checkpoint" in place for place in found["honest-false"])


def test_every_component_is_covered(tmp_path: Path) -> None:
    used = set()
    for recipe in recipes(tmp_path).values():
        shared: dict[str, Any] = {}
        for stage in [stage_components(table, shared) for table in recipe.stages]:
            used |= {type(c) for _, c in state.walk({**stage.memories(), "measured": stage.measured})}
    known = {c for _, c in entries().items() if c.__module__.startswith("shuhari.")}
    missing = [
        f"{kind} {name!r}"
        for (kind, name), c in sorted(entries().items())
        if c in known - used and kind not in OUTSIDE and find_spec("reasoning_gym" if name == "reasoning-gym" else "os")
    ]
    assert not missing, f"no recipe here uses {', '.join(missing)}: add them to one, in MORE of {__file__}"


if __name__ == "__main__":
    if told := sys.stdin.read():
        go_on(Path(told))
