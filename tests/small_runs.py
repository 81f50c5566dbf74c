"""Runs that take a second: recipes for the tests of state, resuming and killing, and what of a run must be equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.config.recipe import Recipe, load

POLICY = """[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
intermediate = 16
"""


def write_sums(steps: int, size: int) -> str:
    """GRPO on two-digit sums, `size` problems of four samples a step."""
    return f"""steps = {steps}
[task]
name = "arithmetic"
kind = "add"
digits = 2
{POLICY}[rollout]
n = 4
sampling.max_new = 4
[buffer]
size = {size}
[collect.advantage]
[part.policy]
terms.loss = {{use = "clip"}}
optimiser.lr = 1e-2
"""


TEXT = """# imitation, then GRPO on one-digit sums, with a schedule, an average of iterates and a KL to a frozen copy
steps = 6
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 2
heads = 2
intermediate = 32
[rollout]
n = 8
sampling.max_new = 3
[buffer]
size = 4
[collect.advantage]
scale = "batch"
[part.policy]
minibatches = 2
terms.loss = {use = "clip", high = 0.28}
terms.divergence = {weight = 0.01}
optimiser.lr = {from = 1e-2, to = 1e-3, over = 6}
optimiser.clip = 1.0
[models.reference]
init = "policy"
[models.average]
init = "policy"
[follow.average]
rate = 0.1
on = "step"
[evaluate]
every = 2
n = 4
samples = 2
[[stage]]
name = "warm-up"
steps = 12
remove = ["models.reference", "models.average", "follow.average", "collect.advantage", "part.policy.terms.loss",
          "part.policy.terms.divergence"]
buffer = {use = "demos", size = 16}
part.policy.terms.nll.stream = "ce"
part.policy.optimiser.lr = 1e-2
evaluate.every = 0
[[stage]]
name = "rl"
"""

DQN = """# deep Q-learning with replay: a ring that goes round, exploration on a schedule, a target that is copied
steps = 30
[task]
name = "gym/CartPole-v1"
[models.policy]
use = "q_discrete"
hidden = [16]
[models.target]
init = "policy"
[rollout]
use = "vector"
lanes = 2
sampling.epsilon = {from = 1.0, to = 0.1, over = 20}
[buffer]
use = "replay"
capacity = 64
size = 16
collect = 6
draws = 2
warmup = 20
[part.policy.terms.q_learning]
double = true
[part.policy.optimiser]
lr = 1e-2
[follow.target]
use = "copy"
every = 7
[evaluate]
every = 10
n = 2
settings = {max_steps = 30}
"""

SAC = """# a critic with two members, a squashed policy, a temperature, on a continuous world
steps = 12
[task]
name = "gym/Pendulum-v1"
kwargs = {max_episode_steps = 20}
[models.policy]
use = "squashed"
hidden = [16]
[models.critic]
use = "q_continuous"
hidden = [16]
[models.target]
init = "critic"
[models.temperature]
use = "scalar"
[rollout]
use = "vector"
lanes = 2
random = 10
[buffer]
use = "replay"
capacity = 60
size = 16
collect = 6
ratio = 0.5
warmup = 12
[part.critic]
terms.soft_td = {}
optimiser.lr = 1e-2
[part.policy]
terms.reparam = {}
optimiser.lr = 1e-2
[part.temperature]
terms.temperature = {target_entropy = -1.0}
optimiser = {use = "adam", lr = 1e-2}
[follow.target]
of = "critic"
rate = 0.1
"""

PPO = """# proximal policy optimisation in lanes of environments whose episodes go on from step to step
steps = 8
[task]
name = "gym/CartPole-v1"
[models.policy]
use = "categorical"
hidden = [16]
normalise = true
[models.critic]
use = "value"
hidden = [16]
normalise = true
returns = true
[rollout]
use = "vector"
lanes = 4
[buffer]
size = 64
[collect.scale_rewards]
[transform.gae]
scale = "batch"
[part.policy]
epochs = 2
minibatches = 2
terms.loss = {use = "clip"}
terms.entropy = {weight = 0.01}
optimiser.lr = 1e-2
[part.critic]
epochs = 2
minibatches = 2
terms.value = {}
optimiser.lr = 1e-2
"""

BANDIT = """# a table on a bandit: the smallest run
steps = 12
[task]
name = "bandit"
[models.policy]
use = "tabular"
[rollout]
n = 4
[buffer]
size = 4
[collect.advantage]
centre = "leave-one-out"
scale = "none"
[part.policy.terms.loss]
use = "clip"
behaviour = "present"
[part.policy.optimiser]
use = "adam"
lr = 0.1
[evaluate]
every = 5
n = 8
"""

GRIDWORLD = """# a table in a gridworld: whole episodes, returns, dynamic sampling
steps = 10
[task]
name = "gridworld"
cells = ["S.G", "..H"]
living = -0.1
slip = 0.2
limit = 8
[models.policy]
use = "tabular"
[rollout]
use = "episode"
n = 4
[reward.weights]
task = 1.0
[buffer]
size = 2
[collect.drop_uniform_groups]
[transform.returns]
gamma = 0.9
[part.policy]
epochs = 2
terms.loss = {use = "clip"}
optimiser.lr = 0.1
[evaluate]
every = 4
n = 8
"""

STAGES = """# stages: two in the same lanes, a third in lanes of its own; the world is replayed on resuming
[task]
name = "gym/small_runs:Delay-v0"
[models.policy]
use = "categorical"
hidden = [8]
[rollout]
use = "vector"
lanes = 3
[buffer]
size = 12
[transform.returns]
[part.policy]
terms.loss = {use = "clip", behaviour = "present"}
optimiser.lr = 1e-2
[[stage]]
name = "first"
env_steps = 30
[[stage]]
name = "second"
decisions = 30
part.policy.optimiser.lr = 1e-3
[[stage]]
name = "third"
steps = 3
rollout.lanes = 2
part.policy.terms.entropy = {weight = 0.1}
"""

ALL = {"text": TEXT, "dqn": DQN, "sac": SAC, "ppo": PPO, "bandit": BANDIT, "gridworld": GRIDWORLD, "stages": STAGES}


class Lag(gymnasium.Env[Any, Any]):
    """A world that no copy of its attributes brings back: the reward is the action before last, kept in a list."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.past = [0, 0]
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.past.append(int(action))
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, float(self.past[-3]), len(self.past) > 9, False, {}


gymnasium.register("Delay-v0", lambda: Lag())


def recipe(name: str, folder: Path, **settings: Any) -> Recipe:
    """A recipe of this file, with settings laid over; a checkpoint every step unless it says otherwise."""
    file = folder / f"{name}.toml"
    file.write_text(ALL[name])
    return often(load(file)).with_settings({k.replace("__", "."): v for k, v in settings.items()})


def often(recipe: Recipe) -> Recipe:
    """With a checkpoint every step where the recipe leaves that to the clock."""
    return recipe if "store" in recipe.tree else recipe.with_settings({"store.every": 1})
