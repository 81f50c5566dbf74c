"""From trajectories to rows: what joins, where rewards fall, what becomes a column."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.data import Problem, Ramp, Request, Sampling, Status, Step, Trajectory, code
from shuhari.kernel.columns import BRANCH
from shuhari.kernel.pack import find_usable, pack, pad

NAN = float("nan")
PLAIN = Sampling()


def tokens(*ids):
    return np.array(ids, np.int32)


def turn(context, action, parent=None, **fields):
    return Step.of(
        tokens(*context), tokens(*action), -np.arange(1.0, len(action) + 1, dtype=np.float32), parent=parent, **fields
    )


def episode(*steps, key="", sampling=PLAIN, status=Status.FINISHED, **info):
    return Trajectory(Request(Problem("t", "p", ""), key=key, sampling=sampling), steps, status, info)


def test_turns_that_share_a_prefix_are_one_row():
    first = turn([1, 2], [3, 4], reward={"r": 1.0}, version=5, info={"entropy": np.array([0.1, 0.2], np.float32)})
    second = turn(
        [1, 2, 3, 4, 8, 9], [6], 0, reward={"r": 2.0}, version=7, info={"entropy": np.array([0.3], np.float32)}
    )
    batch = pack([episode(first, second)])
    assert len(batch) == 1 and batch["length"].tolist() == [7]
    assert batch["action"].tolist() == [[3, 4, 8, 9, 6]]
    assert batch["mask"].tolist() == [[True, True, False, False, True]]
    assert batch["segment"].tolist() == [[0, 0, 0, 0, 1]]
    assert batch["version"].tolist() == [[5, 5, -1, -1, 7]]
    assert batch["logp"].tolist() == [[-1, -2, 0, 0, -1]]
    assert batch["reward/r"].tolist() == [[0, 1, 0, 0, 2]]
    torch.testing.assert_close(batch["entropy"], torch.tensor([[0.1, 0.2, 0, 0, 0.3]]))
    (step,) = batch.steps
    assert step.context.tolist() == [1, 2] and step.action.tolist() == [3, 4, 8, 9, 6]


@pytest.mark.parametrize(
    "second",
    [
        turn([1, 2, 3, 5], [6], 0),  # another context
        turn([1, 2, 3, 4], [6], 0, role="other"),
        turn([1, 2, 3, 4], [6], 0, sampling=Sampling(temperature=0.5)),
        turn([1, 2, 3, 4], [6], 0, cont=0.5),  # a row's value may count in part, a turn's cannot
        Step.closing(tokens(1, 2, 3, 4), 0, 1.0),
        turn([1, 2, 3, 4], [6], None),
    ],
)
def test_what_does_not_continue_is_a_row_of_its_own(second):
    batch = pack([episode(turn([1, 2], [3, 4]), second)])
    assert len(batch) == 2 and batch["episode"].tolist() == [0, 0]
    linked = second.parent is not None
    assert batch["parent"].tolist() == [-1, 0 if linked else -1] and batch["child"].tolist() == [
        1 if linked else -1,
        -1,
    ]
    assert batch["cont"].tolist() == [1, second.cont]


def test_siblings_share_their_parents_row():
    root, a, b = turn([1], [2]), turn([1, 2], [3], 0), turn([1, 2], [4], 0)
    batch = pack([episode(root, a, b, turn([1, 2, 3], [5], 1))])
    assert batch["action"].tolist() == [[2, 0], [3, 5], [4, 0]]
    assert batch["parent"].tolist() == [-1, 0, 0] and batch["child"].tolist() == [BRANCH, -1, -1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_joined_turns_say_what_was_said(parts):
    """Turns of a growing conversation: the row's text is the conversation, its decisions are what the policy said."""
    text, steps, said, where = [0], [], [], []
    for gap, k in parts:
        text += list(range(len(text), len(text) + gap))
        action = list(range(100 + len(text), 100 + len(text) + k))
        steps.append(turn(text, action, len(steps) - 1 if steps else None))
        where += range(len(text) - 1 - (parts[0][0]), len(text) - 1 - (parts[0][0]) + k)
        text, said = text + action, said + action
    batch = pack([episode(*steps)])
    (row,) = batch.steps
    assert [*row.context, *row.action] == text
    assert batch["action"][batch["mask"]].tolist() == said and batch["mask"][0].nonzero().squeeze(1).tolist() == where
    assert batch["segment"][batch["mask"]].tolist() == [i for i, (_, k) in enumerate(parts) for _ in range(k)]


def test_a_name_that_an_episode_has_nowhere_is_nan_and_absent_elsewhere_is_zero():
    a = episode(turn([1], [2], reward={"r": 1.0}), turn([5], [6, 7], 0))
    b = episode(turn([1], [2], reward={"s": np.array([4.0])}))
    batch = pack([a, b])
    torch.testing.assert_close(batch["reward/r"], torch.tensor([[1.0, 0], [0, 0], [NAN, NAN]]), equal_nan=True)
    torch.testing.assert_close(batch["reward/s"], torch.tensor([[NAN, NAN], [NAN, NAN], [4, 0]]), equal_nan=True)


def test_rewards_of_turns_may_mix_numbers_and_arrays():
    whole = turn([1], [2, 3], reward={"r": np.array([1, 2])})
    batch = pack([episode(whole, turn([1, 2, 3], [4, 5], 0, reward={"r": 0.5}))])
    assert batch["reward/r"].tolist() == [[1, 2, 0, 0.5]]


def test_a_number_falls_on_the_last_decision():
    step = Step(tokens(1), tokens(2, 3, 4), np.array([True, True, False]), np.zeros(3), None, reward={"r": 5.0})
    assert pack([episode(step)])["reward/r"].tolist() == [[0, 5, 0]]


def test_dense_contexts_stack():
    def step(x, parent=None):
        return Step.of(np.full(2, x), np.array(int(x)), np.array([-x], np.float32), parent=parent, reward={"task": x})

    chain = episode(step(1.0), step(2.0, 0), Step.closing(np.full(2, 3.0), 1, 0.0))
    batch = pack([chain, chain])
    assert batch["context"].dtype == torch.float32 and batch["context"][:3, 0].tolist() == [1, 2, 3]
    assert batch["action"].tolist() == [1, 2, 0, 1, 2, 0] and batch["mask"][:, 0].tolist() == [True, True, False] * 2
    assert batch["cont"].tolist() == [1, 1, 0] * 2 and batch["child"].tolist() == [1, 2, -1, 4, 5, -1]
    assert batch["episode"].tolist() == [0, 0, 0, 3, 3, 3] and batch.outcome("reward/task").tolist() == [3.0] * 6
    views = pack([episode(Step.of({"a": np.zeros(3), "b": 1}, 0))])
    assert views["context/a"].shape == (1, 3) and views["context/b"].tolist() == [1]
    with pytest.raises(ValueError, match="do not stack"):
        pack([episode(Step.of(np.zeros(2), 0)), episode(Step.of(np.zeros(3), 0))])


def test_ids_groups_and_status():
    batch = pack([episode(turn([1], [2]), key="a"), episode(turn([1], [2]), key="a", status=Status.ERROR)], start=40)
    assert batch["id"].tolist() == batch["episode"].tolist() == [40, 41]
    assert batch["group"].tolist() == [code("a")] * 2 and find_usable(batch).tolist() == [True, False]
    assert batch["task"].tolist() == [code("t")] * 2 and batch["role"].tolist() == [code("policy")] * 2


def test_unknown_behaviour_is_nan_and_padding_is_zero():
    unknown = Step.of(tokens(1), tokens(2))
    batch = pack([episode(unknown), episode(turn([1], [2, 3]))])
    torch.testing.assert_close(batch["logp"], torch.tensor([[NAN, 0], [-1, -2]]), equal_nan=True)


def test_facts_become_columns():
    one = turn([1], [2], info={"seconds": 2, "support": np.array([[1, 2, 3]]), "text": "two"})
    two = turn([1], [2, 3], info={"support": np.array([[4], [5]])})
    batch = pack([episode(one, difficulty=0.5), episode(two)])
    torch.testing.assert_close(batch["seconds"], torch.tensor([2.0, NAN]), equal_nan=True)
    torch.testing.assert_close(batch["difficulty"], torch.tensor([0.5, NAN]), equal_nan=True)
    assert batch["support"].tolist() == [[[1, 2, 3], [-1] * 3], [[4, -1, -1], [5, -1, -1]]] and "text" not in batch
    with pytest.raises(ValueError, match="'mask'"):
        pack([episode(turn([1], [2], info={"mask": 1.0}))])
    with pytest.raises(ValueError, match="2 entries for a step of 1"):
        pack([episode(turn([1], [2], info={"q": np.zeros(2)}))])


def test_temperatures_are_those_of_the_sampling():
    assert "temperature" not in pack([episode(turn([1], [2]))])
    warm = Sampling(temperature=0.5)
    batch = pack([episode(turn([1], [2, 3]), sampling=warm), episode(turn([1], [2]))])
    assert batch["temperature"].tolist() == [[0.5, 0.5], [1, 1]]
    ramp = Sampling(temperature=Ramp(1.0, 3.0, over=2))
    turns = (turn([1], [2, 3]), turn([1, 2, 3, 9], [4, 5], 0))
    batch = pack([episode(*turns, sampling=ramp)])  # each call counts its own decisions
    assert batch["temperature"][batch["mask"]].tolist() == [1, 2, 1, 2]


def test_pad():
    assert pad([np.array([1, 2]), np.array([3])], -1, np.int64).tolist() == [[1, 2], [3, -1]]


def test_what_a_turn_did_not_say_is_unknown():
    """Three turns, [3, 4], a gap of one, [6], then [7]; the second says nothing."""
    said = {"entropy": np.array([0.5, 0.25], np.float32), "kept": np.array([[1], [2]]), "seconds": 2.0}
    steps = [
        turn([1, 2], [3, 4], info=said),
        turn([1, 2, 3, 4, 9], [6], 0, info={"seconds": 3.0}),
        turn([1, 2, 3, 4, 9, 6], [7], 1, info={"entropy": np.array([1]), "kept": np.array([[5, 6]])}),
    ]
    batch = pack([episode(*steps)])
    wanted = torch.tensor([[0.5, 0.25, 0, NAN, 1]])
    torch.testing.assert_close(batch["entropy"], wanted, equal_nan=True)
    assert batch["kept"].tolist() == [[[1, -1], [2, -1], [-1, -1], [-1, -1], [5, 6]]]
    assert batch["seconds"].tolist() == [3]  # the last turn's that gave it
    whole = [turn([1], [2], info={"n": np.array([1])}), turn([1, 2], [3], 0, info={"n": np.array([0.5])})]
    assert pack([episode(*whole)])["n"].tolist() == [[1, 0.5]]
    with pytest.raises(ValueError, match="'entropy' is an array in one turn and a number in another"):
        pack([episode(steps[0], turn([1, 2, 3, 4], [6], 0, info={"entropy": 1.0}))])
    with pytest.raises(ValueError, match="2 entries for a step of 1"):
        pack([episode(steps[0], turn([1, 2, 3, 4], [6], 0, info={"entropy": np.zeros(2)}))])


def test_a_split_call_keeps_its_temperatures():
    ramp = Sampling(temperature=Ramp(1.0, 5.0, over=4, warm=3))
    call, more = turn([1, 2], [3, 4, 5, 6]), ([1, 2, 3, 4, 5, 6, 9], [7, 8])
    whole = pack([episode(call, turn(*more, 0), sampling=ramp)])
    first, second = call.split(1)
    second, third = second.split(2)
    halves = [first, replace(second, parent=0), replace(third, parent=1)]
    again = pack([episode(*halves, turn(*more, 2), sampling=ramp)])
    for name in ("action", "mask", "temperature", "segment", "logp"):
        torch.testing.assert_close(again[name], whole[name], msg=name)
    # with a sibling the halves are rows of their own
    other = turn([1, 2, 3], [50, 60], 0)
    tree = pack([episode(*halves, other, sampling=ramp)])
    wanted = ramp.temperatures(4).tolist()
    assert tree["temperature"][tree["mask"]].tolist() == pytest.approx([wanted[0], *wanted[1:4], *wanted[:2]])
    assert tree["segment"][tree["mask"]].tolist() == [0] * 6
