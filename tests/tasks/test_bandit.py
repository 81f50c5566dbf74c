"""The bandit: rewards whose averages are the means, by the law of large numbers and by the exact expectation."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.data import Step
from shuhari.tasks.bandit import Bandit


def pull(arm: int) -> list[Step]:
    return [Step.of(0, np.int64(arm), np.zeros(1, np.float32))]


@pytest.mark.parametrize(
    ("law", "means", "deviation"), [("bernoulli", (0.2, 0.9, 0.5), None), ("gaussian", (-1.0, 3.0, 0.5), 2.0)]
)
def test_rewards_follow_the_law(law: str, means: tuple[float, ...], deviation: float | None) -> None:
    task, n = Bandit(arms=3, law=law, means=means, scale=2.0), 3000
    train = task.problems("train")
    for arm, mean in enumerate(means):
        rewards = np.array([task.grade(train[i], pull(arm))["task"] for i in range(n)])
        spread = deviation if deviation is not None else (mean * (1 - mean)) ** 0.5
        assert abs(rewards.mean() - mean) < 4 * spread / n**0.5
        assert abs(rewards.std() - spread) < 0.1 * spread
        if law == "bernoulli":
            assert set(rewards) == {0.0, 1.0}


def test_scores_are_noise_free_and_expectations_exact() -> None:
    task = Bandit(arms=4, means=(0.1, 0.6, 0.35, 0.1))
    problem = task.problems("train")[0]
    assert [task.grade(problem, pull(a))["score"] for a in range(4)] == pytest.approx([0, 1, 0.5, 0])
    assert task.expected([0.25] * 4) == pytest.approx(0.2875)
    equal = Bandit(arms=2, means=(0.5, 0.5))
    assert equal.grade(equal.problems("train")[0], pull(1))["score"] == 1.0


def test_a_reward_belongs_to_problem_and_arm() -> None:
    task, again = Bandit(arms=2, law="gaussian", seed=3), Bandit(arms=2, law="gaussian", seed=3)
    assert task.means == again.means != Bandit(arms=2, law="gaussian", seed=4).means
    train = task.problems("train")
    draws = {(i, a): task.grade(train[i], pull(a))["task"] for i in range(20) for a in (0, 1)}
    assert len(set(draws.values())) == 40
    assert draws == {(i, a): again.grade(train[i], pull(a))["task"] for i in range(20) for a in (0, 1)}
    test = task.problems("test")
    assert test.size() == 256 and test[0].id != train[0].id
    assert train[5].prompt == 0


def test_drawn_means() -> None:
    many = np.array(Bandit(arms=2000, law="gaussian").means)
    assert abs(many.mean()) < 4 / 2000**0.5 and abs(many.std() - 1) < 0.1
    uniform = np.array(Bandit(arms=2000).means)
    assert uniform.min() > 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03


def test_spaces_and_errors() -> None:
    observation, action = Bandit(arms=5).spaces()
    assert (observation.n, action.n) == (1, 5)
    task = Bandit(arms=2)
    for arm in (-1, 2):
        with pytest.raises(ValueError, match=f"the action is {arm}"):
            task.grade(task.problems("train")[0], pull(arm))
    for fields, message in (
        ({"law": "gausian"}, "did you mean 'gaussian'"),
        ({"arms": 1}, "arms is 1"),
        ({"arms": 2, "means": (0.5,)}, "1 means for 2 arms"),
        ({"arms": 2, "means": (0.5, 1.5)}, "probabilities"),
        ({"scale": -1.0}, "scale is -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            Bandit(**fields)  # type: ignore[arg-type]
