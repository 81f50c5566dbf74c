"""Control from recorded episodes, ours beside d3rlpy: IQL, TD3+BC and CQL on Pendulum; gradient steps a second.

The episodes are those that the recipe's buffer reads, handed to d3rlpy as its own data set. Networks, batches, learning
rates, targets and the constants of each method are the recipe's on both sides; nothing is logged, evaluated or stored.
A tick is 100 updates with what draws their batches. `ready`: theirs with batches that were drawn beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gate import Gate

TICK = 100  # updates: `buffer.draws` of the recipes
LR = 1e-3
COMMON: dict[str, Any] = {"batch_size": 256, "gamma": 0.99, "tau": 0.005}


def open_ours(case: dict[str, Any], **settings: Any) -> Any:
    """The run of the recipe, which no step was made of."""
    from shuhari.config import recipe
    from shuhari.loop.run import open_run

    told = {"threads": case["threads"], "seed": case.get("seed", 0), "remove": ["evaluate"], **settings}
    return open_run(recipe.load(f"baselines/{case['recipe']}", settings=told))


def ours(case: dict[str, Any], gate: Gate) -> None:
    from shuhari.loop.run import loop

    run = open_ours(case, steps=10**9)
    run.enter_stage()
    if gate.wait():
        for _ in loop(run):
            gate.count(updates=TICK)
            if not gate.tick():
                return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    data, learner = open_theirs(case, 10**9)
    ready = [data.sample_transition_batch(COMMON["batch_size"]) for _ in range(TICK)] if case.get("ready") else []
    if not gate.wait():
        return
    while True:
        if ready:
            for batch in ready:
                learner.update(batch)
        else:
            fit(learner, data, TICK)
        gate.count(updates=TICK)
        if not gate.tick():
            return


def fit(learner: Any, data: Any, updates: int) -> None:
    """What d3rlpy's own `fit` does, without its logs, progress bar and checkpoints."""
    for _ in range(updates):
        learner.update(data.sample_transition_batch(COMMON["batch_size"]))


def open_theirs(case: dict[str, Any], updates: int) -> tuple[Any, Any]:
    """(the data set of the same episodes, a learner that no update was made of); `updates`: how many there will be."""
    import d3rlpy
    import structlog
    from d3rlpy.algos.utility import build_scalers_with_transition_picker

    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # it says much
    d3rlpy.seed(case.get("seed", 0))
    data = recorded(case)
    learner = METHODS[case["method"]](updates).create(device=False)
    build_scalers_with_transition_picker(learner, data)
    learner.build_with_dataset(data)
    return data, learner


def recorded(case: dict[str, Any]) -> Any:
    """The recipe's episodes as d3rlpy reads them: actions in [-1, 1], rewards by the recipe's weight.

    d3rlpy has no last observation of an episode that a time limit ended, and leaves its last transition out. Here the
    closing row stands for one more step that is never drawn, so that both sides have the same transitions."""
    import numpy as np
    from d3rlpy.dataset import MDPDataset

    run = open_ours(case)
    buffer = next(iter(run.stage.learners.values())).buffer
    columns = buffer.data.read(run.ctx.task, buffer.seed)
    bound = float(run.ctx.task.spaces()[1].high[0])
    closing = ~columns["mask"][:, 0].numpy()
    if not columns["cont"].bool().all():
        raise ValueError("an episode ended by itself: no closing row can stand for a step of it")
    return MDPDataset(
        observations=columns["context"].numpy(),
        actions=columns["taken"].numpy() / bound,
        rewards=run.stage.weights["task"] * columns["reward/task"].numpy(),
        terminals=np.zeros(len(closing)),
        timeouts=closing.astype(np.float64),
    )


def _nets(*roles: str) -> dict[str, Any]:
    """The recipes' networks and learning rates: two layers of 64, ReLU."""
    from d3rlpy.models.encoders import VectorEncoderFactory

    layers = {f"{role}_encoder_factory": VectorEncoderFactory([64, 64]) for role in roles}
    return {**layers, "actor_learning_rate": LR, "critic_learning_rate": LR, **COMMON}


def _iql(updates: int) -> Any:
    from d3rlpy.algos import IQLConfig
    from d3rlpy.optimizers import AdamFactory
    from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory

    cosine = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=updates))
    return IQLConfig(**_nets("actor", "critic", "value"), actor_optim_factory=cosine, expectile=0.7,
                     weight_temp=1 / 0.3, max_weight=100.0)  # fmt: skip


def _td3_bc(updates: int) -> Any:
    from d3rlpy.algos import TD3PlusBCConfig
    from d3rlpy.preprocessing import StandardObservationScaler

    return TD3PlusBCConfig(**_nets("actor", "critic"), observation_scaler=StandardObservationScaler(), alpha=2.5,
                           target_smoothing_sigma=0.2, target_smoothing_clip=0.5, update_actor_interval=2)  # fmt: skip


def _cql(updates: int) -> Any:
    from d3rlpy.algos import CQLConfig

    return CQLConfig(**_nets("actor", "critic"), temp_learning_rate=LR, alpha_learning_rate=0.0, initial_alpha=1.0,
                     conservative_weight=5.0, n_action_samples=4)  # fmt: skip


METHODS: dict[str, Callable[[int], Any]] = {"iql": _iql, "td3_bc": _td3_bc, "cql": _cql}
