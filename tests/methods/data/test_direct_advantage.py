"""Direct Advantage PO as its recipe says it: the regression by hand, and the trees it is on."""

from __future__ import annotations

from built import CLIP, answers, demonstrated, holds, learnt, padded, same, table
from shuhari.objectives.log_ratio import LogRatio
from shuhari.transforms.siblings import Apart
from shuhari.transforms.tree import NodeAdvantage

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
    """Advantages are over the step before, of values of -1 and 1, and steps alike to 0.2 are not learnt from."""
    wanted = {
        **TREE,
        f"{CLIP}.objective": LogRatio("square", beta=1.0, centre="none", over="behaviour", level="row"),
        f"{CLIP}.reduce": "row",
        "learners.main.transforms": {
            "node_advantage": NodeAdvantage(less="parent"),
            "drop_tied_steps": Apart(least=0.2),
        },
    }
    stage = holds("data/direct_advantage", wanted, usual=True)
    assert list(stage.learners["main"].parts["policy"].terms) == ["loss"] and "reference" not in stage.models


def test_the_regression_of_steps_from_the_prompt() -> None:
    """Rewards 1, 0, 0: values 1, -1, -1, whose mean is -1/3, and advantages 4/3, -2/3, -2/3. The gradient of the mean
    over steps of (s - A)^2 / 2 by each token is (s - A) / 3, s the sum over the step's tokens since the first policy,
    which gave each the log-probability 0."""
    stage = demonstrated("data/direct_advantage")
    for new in ([[0.0], [0.0], [0.0, 0.0]], [[-0.5], [0.25], [-1.0, 0.5]]):
        log_prob = padded(*new).requires_grad_()
        batch = answers(stage, ["a", "b", "cd"], [1.0, 0.0, 0.0])
        (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))
        same(found, [[(sum(s) - a) / 3] * len(s) for s, a in zip(new, (4 / 3, -2 / 3, -2 / 3), strict=True)])
