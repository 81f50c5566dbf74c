"""What the built stages hold of their papers: numbers of the catalogue, written down here, not read from a recipe.

Left out: what a recipe scales and says so (sizes of batches and pools, learning rates), but for ratios that stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import pytest

from built import OLD, answers, built, learnt, padded, same, table
from shuhari.config.build import make_component
from shuhari.config.recipe import load
from shuhari.methods.curriculum.dars.extra_samples import Deepen
from shuhari.methods.curriculum.mbtl.mbtl import Mbtl
from shuhari.methods.curriculum.pcl.prompt_rate import PromptRate
from shuhari.methods.data.prefix_rl.solution_prefix import Prefixed
from shuhari.methods.rlvr.mssr.entropy_shaping import EntropyShaping
from shuhari.methods.rlvr.mssr.tracked_advantage import Tracker
from shuhari.objectives.clip import Clip
from shuhari.objectives.log_ratio import LogRatio
from shuhari.objectives.value import Value
from shuhari.rollouts.rounds import HintCurve, HintLadder
from shuhari.rollouts.single import Single
from shuhari.rollouts.tree import TreeSearch
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed
from shuhari.transforms.tree import NodeAdvantage

POLICY = "learners.main.parts.policy"
CLIP = f"{POLICY}.terms.loss"
FRESH, REPLAY = (f"learners.main.buffer.buffers.{name}" for name in ("fresh", "replay"))
SCALED = {"advantage": Advantage(centre="mean", scale="group")}  # GRPO's: less the mean, over the deviation

PAPERS: dict[str, dict[str, Any]] = {
    "rlvr/kimi_k15": {  # 13: the log-ratio of a whole answer to the policy that sampled, on rewards less their mean
        f"{POLICY}.terms.loss.objective": LogRatio("square", 1.0, "none", "old", "row"),
        f"{POLICY}.terms.loss.reduce": "row",
        f"{POLICY}.optimiser.reset.on": "step",
        "collect": {"advantage": Advantage(centre="mean", scale="none")},
        "curriculum.pick": "failed",  # in proportion to 1 - success rate
    },
    "curriculum/dots": {  # 216
        "curriculum.pick": "sample",
        "curriculum.target": 0.5,
        "curriculum.tau": 1e-3,
        "curriculum.ahead": 8,  # mu, steps a prediction: 2 there, and 64 times as many problems a step
        "curriculum.predictor.n": 0,  # of a reference as many samples as of any group
        "n": 8,
        f"{FRESH}.size": 4,  # half of a batch
        f"{REPLAY}.size": 4,
        f"{REPLAY}.capacity": 8,  # as many groups as a batch has: 512 of 512
        f"{REPLAY}.low": 0.0,  # groups all wrong and all right are not kept
        f"{REPLAY}.high": 1.0,
        "curriculum.predictor.references": 16,  # half of the new groups between predictions: 256 of 2 x 256 there
        f"{CLIP}.objective": Clip(low=0.2, high=0.2, behaviour="behaviour"),  # over what was stored
        "collect": SCALED,
    },
    "curriculum/mopps": {  # 222
        "curriculum.pick": "topk",
        "curriculum.of": 8,  # M' = 8 M
        "curriculum.target": 0.5,
        "curriculum.predictor.keep": 0.5,  # lambda
        "curriculum.predictor.prior": (1.0, 1.0),
        "curriculum.predictor.trials": 0,
        "n": 8,
        "collect": SCALED,
    },
    "curriculum/pcl": {  # 62
        "curriculum.pick": "topk",
        "curriculum.of": 4,  # k
        "curriculum.target": 0.5,  # tau
        "n": 8,
        "collect": SCALED | {"rate": PromptRate()},
        "learners.main.parts.difficulty.terms.value.objective": Value(role="difficulty", target="rate"),
    },
    "rlvr/mssr": {  # 220
        "n": 1,
        "collect": {
            "tracked_advantage": Tracker(keep=0.9, prior=(1.0, 1.0)),
            "advantage": Advantage(column="surplus", centre="mean", unit="batch", scale="batch"),
            "entropy_shaping": EntropyShaping(alpha=0.4, kappa=2.0),
        },
        f"{CLIP}.objective": Clip(low=0.2, high=0.28),
    },
    "curriculum/dars": {  # 30
        "rollout": Deepen(most=32, schedule="equal", scaled=False),
        "n": 8,
        "collect": {"advantage": Advantage(centre="mean", scale="none")},
    },
    "curriculum/vas": {  # 247
        "curriculum.every": 28,
        "curriculum.n": 8,
        "curriculum.share": 0.5,
        "curriculum.variance": 0.8,
        "curriculum.diversity": 0.2,
        "curriculum.momentum": 0.0,
        "n": 8,
        "collect": SCALED,
    },
    "curriculum/sec": {  # 63
        "curriculum.alpha": 0.5,
        "curriculum.tau": 0.4,
        "curriculum.column": "advantage",
        "n": 8,
        "collect": SCALED,
    },
    "rlvr/deepsearch": {  # 120
        "rollout.width": 8,
        "rollout.explore": 2.0,
        "rollout.weights": (0.4, 0.4, 0.01),
        "rollout.select": "frontier",
        "rollout.backup": "signed",
        "rollout.every": False,  # of the answers of an expansion one is backed up
        "n": 8,
        "curriculum.rate": 0.25,
        "collect": {"drop_uniform_groups": Mixed(), "advantage": NodeAdvantage()},
        f"{CLIP}.objective": Clip(low=0.2, high=0.28, behaviour="old"),
        f"{CLIP}.reduce": "decision",
    },
    "curriculum/ghpo": {  # 65: only groups all wrong by accuracy are asked again
        "rollout": HintLadder((0.0, 0.25, 0.5, 0.75), "score"),
        "n": 8,
        "collect": SCALED,
    },
    "curriculum/seele": {"rollout": HintCurve(rounds=4, target=0.5, first=0.5), "n": 16, "collect": SCALED},  # 109
    "data/prefix_rl": {"rollout": Prefixed(share=0.5, low=0.4, high=0.8), "n": 8, "collect": SCALED},  # 210
    "rlvr/lite_ppo": {  # 48
        "collect": {"advantage": Advantage(centre="mean", scale="raw", ddof=1)},
        f"{CLIP}.objective": Clip(low=0.2, high=0.2),
        f"{CLIP}.reduce": "decision",
    },
    "curriculum/self": {  # 182: greedy reward of less than 1
        "curriculum.solved": 1.0,
        "n": 8,
        "collect": SCALED,
        f"{CLIP}.objective": Clip(low=0.2, high=0.2),
    },
}


def at(thing: Any, path: str) -> Any:
    """What stands at a dotted path of attributes and names."""
    return reduce(lambda x, name: x[name] if isinstance(x, Mapping) else getattr(x, name), path.split("."), thing)


@pytest.mark.parametrize("recipe", PAPERS)
def test_numbers_of_the_paper(recipe: str) -> None:
    """And one term alone, with the weight 1, on all of the batch, without a reference."""
    stage = built(recipe, usual=recipe == "rlvr/deepsearch")  # whose claim draws no group again
    assert {path: at(stage, path) for path in PAPERS[recipe]} == PAPERS[recipe]
    [term] = at(stage, POLICY).terms.values()
    assert (term.weight, term.stream) == (1.0, "rl") and "reference" not in stage.models
    assert not stage.learners["main"].transforms and stage.sampling.temperature == 1


@pytest.mark.parametrize("recipe", ["curriculum/ghpo", "curriculum/seele", "rlvr/deepsearch"])
def test_help_is_for_training_alone(recipe: str) -> None:
    stage = built(recipe)
    assert isinstance(stage.rollout, (HintLadder, HintCurve, TreeSearch))
    assert isinstance(stage.evaluation_rollout, Single)
    assert recipe == "rlvr/deepsearch" or set(stage.task.rates) == {1}  # the work that hints show is right


def test_kimi_regresses_what_an_answer_gained_in_all() -> None:
    """The gradient by each token of s^2 / 2 - A s (tau = 1), the mean over answers of 1 and 3 tokens, whose policy has
    moved by s = log 2 and log 3 in all. At s = 0 it is REINFORCE with the mean as baseline."""
    stage = built("rlvr/kimi_k15")
    assert stage.learners["main"].parts["policy"].minibatches > 1  # with one step an iteration s would stay 0
    for moved in ([[0.0], [0.0] * 3], [[np.log(2)], [np.log(3), 0.5, -0.5]]):
        log_prob = padded([-1.0], [-1.0] * 3).requires_grad_()
        batch = answers(stage, ["a", "bcd"], [1, 0])
        policy = table(log_prob=log_prob)
        batch = batch.put({OLD: log_prob.detach() - padded(*moved)})
        (found,) = learnt(stage, batch, log_prob, policy=policy)
        same(found, [[-(a - sum(s)) / 2] * len(s) for a, s in zip((0.5, -0.5), moved, strict=True)])


def test_kimi_pays_for_short_answers_after_a_warm_up() -> None:
    """With a weight of w the shortest right answer has w / 2, the longest -w / 2, and a wrong one nothing at most."""
    stage = built("rlvr/kimi_k15")
    ramp = stage.rewards["length"].weight
    assert ramp(0) == ramp(1) == 0 and 0 < ramp(1000) < 2  # at 2 a right long answer would be worth a wrong short one
    assert stage.weights == {"score": 1.0, "length": 1.0}
    assert stage.curriculum.reward == stage.curriculum.predictor.reward == "reward/score"  # how often they are failed


def test_mbtl() -> None:
    """160: a Gaussian process with noise 0.1 and 9 restarts, sqrt(log(k + 1)) deviations, the middle first; 0.005 a
    step of 100 contexts is half of all over the range, and so 0.035 a step of 15."""
    study = make_component("study", load("curriculum/mbtl").tree["study"])
    assert isinstance(study, Mbtl) and (study.pick, study.beta, study.noise, study.restarts) == ("mbtl", "log", 0.1, 9)
    assert study.n == 15 and study.choose_next(np.zeros((15, 15)), [], 0) == 7
    assert study.slope * (study.n - 1) == pytest.approx(0.005 * 99, rel=0.02)
    assert (study.low, study.high) == (0, 500)  # returns of CartPole, as shares
