"""Per-step negatives as its recipe says it: DPO on a pit and the best step beside it, by hand."""

from __future__ import annotations

from math import exp

from built import CLIP, answers, built, holds, learnt, padded, same, table
from shuhari.objectives.preference import Preference
from shuhari.transforms.siblings import FirstPit

TREE = {
    "rollout.select": "breadth",
    "rollout.width": 3,  # next steps in each state
    "rollout.chunk": 4,  # tokens of a step
    "rollout.every": True,
    "rollout.whole": True,
    "learners.main.buffer.n": 3**4,  # all answers of a tree of four steps
    "learners.main.buffer.pool": 16,
    "learners.main.buffer.size": 4,
    "learners.main.buffer.keep": "all",
    "collect": {},
}


def test_numbers_of_the_paper() -> None:
    wanted = {
        **TREE,
        f"{CLIP}.objective": Preference(beta=0.1, form="sigmoid"),
        "learners.main.transforms": {"first_error_pairs": FirstPit(floor=0.0)},
        "models.reference.init": "policy",
    }
    stage = holds("data/step_negatives", wanted, usual=True)
    assert list(stage.learners["main"].parts["policy"].terms) == ["loss", "imitation"]


def test_a_pit_is_pushed_down_and_the_best_beside_it_up() -> None:
    """Rewards 1, 1, 0 of steps from the prompt: the third is the pit, the first its better side, the second in no
    pair. m = (-0.5 + 1) - (-0.2 + 0.7) + 1 = 1 over the reference; the gradient is beta sigmoid(-beta m) either way,
    and 1 more on the better side, which is imitated."""
    stage = built("data/step_negatives")
    log_prob, before = padded([-0.5], [-3.0], [-1.2]).requires_grad_(), padded([-1.0], [-1.0], [-0.7])
    batch = answers(stage, ["a", "b", "c"], [1.0, 1.0, 0.0])
    models = {"policy": table(log_prob=log_prob), "reference": table(log_prob=before)}
    (found,) = learnt(stage, batch, log_prob, **models)
    slope = 0.1 / (1 + exp(0.1 * 1.0))
    same(found, [[-slope - 1.0], [0.0], [slope]])
