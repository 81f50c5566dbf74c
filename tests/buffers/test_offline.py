"""Recorded data: what is kept of episodes, which rows are drawn how often, and where data sets come from."""

from __future__ import annotations

import errno
import io
import json
import zipfile
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.mixture import join_draws as mixed
from shuhari.buffers.offline import Offline
from shuhari.buffers.recording import (
    RecordedEpisode,
    check_columns,
    columns_of,
    join_sets,
    order_episodes,
    select_episodes,
)
from shuhari.buffers.recordings import Joined, Played, Stored, save
from shuhari.config.recipe import load
from shuhari.desk.cli.text import describe
from shuhari.events import Loaded, StageStarted
from shuhari.kernel.join import cat
from shuhari.loop.run import Run as Loop
from shuhari.loop.run import loop, open_run, train
from shuhari.store import Run, StoreError, codec, tensors
from shuhari.tasks.gridworld import Gridworld
from shuhari.tasks.gym import Gym


def episode(first: int, length: int, finished: bool, **columns: Any) -> RecordedEpisode:
    """States count up from `first`, actions are the states, rewards a tenth of them."""
    states = np.arange(first, first + length + 1, dtype=np.float64)[:, None]
    return RecordedEpisode(states, np.arange(first, first + length), {"task": states[:-1, 0] / 10}, finished, columns)


EPISODES = [episode(0, 3, True), episode(10, 1, False), episode(20, 2, False)]


class Given:
    """A recording of given columns."""

    def __init__(self, episodes: list[RecordedEpisode]) -> None:
        self.episodes = episodes

    def read(self, task: Any, seed: int) -> dict[str, torch.Tensor]:
        return columns_of(self.episodes)


def context(step: int = 0, **fields: Any) -> Any:
    """A run of one observed number and two thousand actions."""
    task = SimpleNamespace(spaces=lambda: (spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2000)))
    given: dict[str, Any] = {"task": task, "models": {"policy": object()}, "weights": {"task": 1.0}}
    return testing.context(step=step, **{**given, **fields})


NUMBER = spaces.Box(-np.inf, np.inf, (1,))
ANY: Any = SimpleNamespace(spaces=lambda: (NUMBER, spaces.Discrete(2000)))
CONTINUOUS: Any = SimpleNamespace(spaces=lambda: (NUMBER, NUMBER))


def drawn(buffer: Offline, step: int = 0) -> list[Batch]:
    return list(buffer.draw(context(step)))


def test_episodes_become_rows_in_order_with_where_they_end() -> None:
    c = columns_of(EPISODES)
    assert c["context"][:, 0].tolist() == [0, 1, 2, 3, 10, 11, 20, 21, 22]
    assert c["mask"][:, 0].tolist() == [True, True, True, False, True, False, True, True, False]
    assert c["child"].tolist() == [1, 2, 3, -1, 5, -1, 7, 8, -1]
    assert c["last"].tolist() == [3, 3, 3, 3, 5, 5, 8, 8, 8]
    assert c["cont"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1]  # the first ended by itself, the others were cut
    assert c["reward/task"][:, 0].tolist() == pytest.approx([0, 0.1, 0.2, 0, 1, 0, 2, 2.1, 0])
    assert c["episode"].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    assert c["context"].dtype == torch.float32


def test_what_is_still_to_come_is_discounted_and_stays_within_its_episode() -> None:
    buffer = Offline(Given(EPISODES), size=6, gamma=0.5)
    (batch,) = drawn(buffer)
    state = batch["context"][:, 0].long()
    to_go = torch.zeros(30)
    to_go[state] = batch["to_go"][:, 0]
    assert to_go[[0, 1, 2, 10, 20, 21]].tolist() == pytest.approx([0.1, 0.2, 0.2, 1.0, 2.0 + 1.05, 2.1])
    plain = drawn(Offline(Given(EPISODES), size=6))[0]  # undiscounted: the whole return at the first decision
    first = plain["context"][:, 0] % 10 == 0
    assert torch.equal(plain["to_go"][first, 0], plain["return"][first])


def test_what_is_still_to_come_is_unknown_where_a_reward_of_the_episode_is() -> None:
    broken = episode(0, 2, True)
    broken.rewards["task"][1] = np.nan
    batch = drawn(Offline(Given([broken, episode(10, 1, True)]), size=3))[0]
    assert batch["to_go"].isnan()[:, 0].tolist() == (batch["context"][:, 0] < 10).tolist()


def test_columns_that_an_episode_lacks_are_unknown() -> None:
    c = columns_of([episode(0, 2, True, goal=np.array([4, 5])), episode(5, 1, True)])
    assert c["goal"].tolist() == [4, 5, -1, -1, -1]
    with pytest.raises(ValueError, match=r"episode 0: 2 actions, and reward 'goal' for 3"):
        columns_of([episode(0, 2, True, goal=np.zeros(3))])
    with pytest.raises(ValueError, match="without a decision"):
        columns_of([])


def test_joined_and_cut_data_sets_point_within_themselves() -> None:
    c = columns_of(EPISODES)
    both = join_sets([c, c])
    assert both["last"].tolist() == [*c["last"].tolist(), *(c["last"] + 9).tolist()]
    assert both["episode"].tolist()[-1] == 5 and both["child"].tolist()[9:12] == [10, 11, 12]
    part = select_episodes(c, torch.tensor([2, 0]))
    assert part["context"][:, 0].tolist() == [0, 1, 2, 3, 20, 21, 22]
    assert part["child"].tolist() == [1, 2, 3, -1, 5, 6, -1] and part["last"].tolist() == [3, 3, 3, 3, 6, 6, 6]
    with pytest.raises(ValueError, match="'goal'"):
        join_sets([c, {**c, "goal": c["cont"]}])


def test_rows_in_any_order_become_episodes_again() -> None:
    c = columns_of(EPISODES)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    back = order.argsort()
    child = c["child"][order]
    mixed_up = {n: x[order] for n, x in c.items()} | {"child": torch.where(child < 0, -1, back[child])}
    found = order_episodes(mixed_up)
    starts = found["context"][torch.cat([torch.tensor([0]), found["last"].unique()[:-1] + 1])][:, 0].tolist()
    assert sorted(starts) == [0, 10, 20]
    for a, b in zip(found["last"].unique().tolist(), found["last"].unique().tolist(), strict=True):
        assert found["context"][b, 0] in (3, 11, 22) and not bool(found["mask"][a])
    assert found["reward/task"].sum() == pytest.approx(float(c["reward/task"].sum()))


def test_a_chain_that_leads_nowhere_closes_before_its_last_row() -> None:
    c = {n: x[:3] for n, x in columns_of(EPISODES).items()}  # the closing row is gone
    found = order_episodes({**c, "child": torch.tensor([1, 2, -1])})
    assert found["mask"][:, 0].tolist() == [True, True, False]
    assert found["reward/task"][:, 0].tolist() == pytest.approx([0, 0.1, 0])
    assert found["cont"].tolist()[-1] == 1


def test_each_transition_once_an_epoch_and_orders_differ() -> None:
    buffer = Offline(Given(EPISODES), size=4, draws=3)  # six transitions: three batches of four are two epochs
    seen = torch.cat([b["action"] for b in drawn(buffer)]).tolist()
    transitions = [0, 1, 2, 10, 20, 21]
    assert sorted(seen[:6]) == transitions == sorted(seen[6:])
    later = torch.cat([b["action"] for b in drawn(buffer, 1)]).tolist()
    assert sorted(later[:6]) == transitions and len({tuple(x) for x in (seen[:6], seen[6:], later[:6])}) > 1


def test_a_draw_is_a_view_with_successors_and_unknown_behaviour() -> None:
    buffer, ctx = Offline(Given(EPISODES), size=6), context()
    (batch,) = buffer.draw(ctx)
    ahead = batch.successors()
    assert torch.equal(ahead["context"], batch["context"] + 1)
    assert bool(batch["logp"].isnan().all()) and bool((batch["version"] == -1).all())
    ends = batch.whole["context"][batch["last"]][:, 0]
    assert {(int(a), int(e)) for a, e in zip(batch["action"], ends, strict=True)} == {
        (0, 3), (1, 3), (2, 3), (10, 11), (20, 22), (21, 22),
    }  # fmt: skip
    by_start = {0: 0.3, 1: 0.3, 2: 0.3, 10: 1.0, 20: 4.1, 21: 4.1}
    for a, r in zip(batch["action"].tolist(), batch["return"].tolist(), strict=True):
        assert r == pytest.approx(by_start[a])
    assert buffer.wanted() == 0 and batch.weight("rl").tolist() == [[1.0]] * 6


def test_draws_by_a_column_are_as_often_as_it_weighs() -> None:
    n = 40_000
    for fields, weigh in (
        ({}, lambda x: x),
        ({"power": 2.0}, lambda x: x**2),
        ({"temperature": 0.5}, lambda x: np.exp(x / (4.1 - 0.3) / 0.5)),
    ):
        (batch,) = drawn(Offline(Given(EPISODES), size=n, by="return", **fields))
        values = np.array([0.3, 0.3, 0.3, 1.0, 4.1, 4.1])
        expected = n * weigh(values) / weigh(values).sum()
        counts = np.array([int((batch["action"] == a).sum()) for a in (0, 1, 2, 10, 20, 21)])
        assert ((counts - expected) ** 2 / expected).sum() < 25  # chi square with 5 degrees of freedom


def test_weights_that_are_none_are_refused() -> None:
    below = RecordedEpisode(np.zeros((2, 1)), np.zeros(1, int), {"task": np.array([-1.0])}, True)
    with pytest.raises(ValueError, match="set a temperature"):
        drawn(Offline(Given([below]), by="return"))
    with pytest.raises(ValueError, match="did you mean 'return'"):
        drawn(buffer := Offline(Given(EPISODES), by="retrun"))
    with pytest.raises(ValueError, match=r"buffer\.by = 'retrun'"):  # who asks next is told too
        drawn(buffer)
    assert not buffer.card
    with pytest.raises(ValueError, match="every weight is 0"):
        drawn(Offline(Given([episode(0, 1, True)]), by="return"))
    with pytest.raises(ValueError, match="name it with `by`"):
        Offline(Given(EPISODES), power=2.0)


def test_smaller_subsets_are_parts_of_larger_ones_and_held_out_episodes_of_none() -> None:
    many = [episode(100 * i, 1 + i % 3, True) for i in range(20)]
    starts = lambda buffer: set((drawn(buffer)[0].whole["context"][:, 0] // 100).tolist())  # noqa: E731
    sets = [starts(Offline(Given(many), episodes=k, test=0.2)) for k in (2, 5, 16)]
    assert [len(s) for s in sets] == [2, 5, 16] and sets[0] < sets[1] < sets[2]
    assert starts(Offline(Given(many), episodes=5, seed=1)) != starts(Offline(Given(many), episodes=5))
    buffer = Offline(Given(many), test=0.2)
    (held,) = buffer.held_out("test", 100, context())
    assert set((held["context"][:, 0] // 100).tolist()) == set(range(20)) - starts(buffer)
    assert len((next(buffer.held_out("test", 2, context()))["context"][:, 0] // 100).unique()) == 2
    with pytest.raises(ValueError, match="20 episodes, 4 of them held out"):
        drawn(Offline(Given(many), episodes=17, test=0.2))


def test_it_goes_on_where_it_was_and_only_with_the_same_data() -> None:
    a = Offline(Given(EPISODES), size=4)
    drawn(a)
    b = Offline(Given(EPISODES), size=4)
    b.state = codec.loads(codec.dumps(a.state))
    assert torch.equal(drawn(a, 1)[0]["action"], drawn(b, 1)[0]["action"])
    c = Offline(Given(EPISODES[:2]), size=4)
    c.state = codec.loads(codec.dumps(a.state))
    with pytest.raises(ValueError, match="not the one that the run began with"):
        drawn(c, 1)


def test_a_data_set_is_told_once_a_stage() -> None:
    told: list[Any] = []
    buffer, ctx = Offline(Given(EPISODES), size=4, draws=2), context(tell=told.append)
    list(buffer.draw(ctx)), list(buffer.draw(ctx))
    assert [type(e) for e in told] == [Loaded] and len(told[0].batch) == 9
    buffer.observe(StageStarted("later"))
    list(buffer.draw(ctx))
    assert [e.again for e in told] == [False, True]


def test_beside_other_rows_pointers_hold() -> None:
    (a,), (b,) = drawn(Offline(Given(EPISODES), size=6)), drawn(Offline(Given(EPISODES[:1]), size=3, name="second"))
    both = mixed([b, a])
    assert len(both) == 9 and torch.equal(both.successors()["context"], both["context"] + 1)
    whole = cat([Batch(columns_of(EPISODES)), Batch(columns_of(EPISODES))])
    assert whole["last"].tolist()[9:] == [12, 12, 12, 12, 14, 14, 17, 17, 17]
    view = Batch(columns_of(EPISODES)).take(torch.tensor([6, 8]))
    assert view.flat()["last"].tolist() == [1, 1] and view.take(torch.tensor([0])).flat()["last"].tolist() == [-1]


def test_the_reward_is_the_runs_and_a_name_that_is_missing_is_told() -> None:
    two = [RecordedEpisode(e.observations, e.actions, {**e.rewards, "cost": np.ones(len(e))}, True) for e in EPISODES]
    (batch,) = Offline(Given(two), size=6).draw(context(weights={"task": 2.0, "cost": -1.0}))
    assert batch["reward"].sum() == pytest.approx(2 * 5.4 - 6)
    with pytest.raises(ValueError, match=r"'tsk', which the data set does not have; did you mean 'task'"):
        next(Offline(Given(two)).draw(context(weights={"tsk": 1.0})))


def test_weights_of_rewards_follow_their_schedules_and_a_resume_goes_on_with_them() -> None:
    def draw(buffer: Offline, step: int) -> Batch:
        return next(buffer.draw(context(step, weights={"task": 1.0 + step})))

    whole, part = (Offline(Given(EPISODES), size=6, by="return") for _ in range(2))
    first, later = draw(whole, 0), draw(whole, 4)
    for batch, weight in ((first, 1.0), (later, 5.0)):
        assert torch.equal(batch["reward"], weight * batch["reward/task"])
    assert later.whole["return"].unique().tolist() == pytest.approx([5 * 0.3, 5 * 1.0, 5 * 4.1])
    part.state.update(whole.state)
    resumed = draw(part, 4)
    assert resumed.names() == later.names() and all(
        torch.equal(resumed[n].nan_to_num(), later[n].nan_to_num()) for n in later.names()
    )


@pytest.mark.parametrize(("name", "value"), [("temperature", float("nan")), ("size", 0), ("test", 1.0)])
def test_settings_out_of_their_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}: expected a number"):
        Offline(Given(EPISODES), **{"by": "return", name: value})


def test_data_of_another_task_is_refused() -> None:
    from gymnasium import spaces

    c = columns_of(EPISODES)
    with pytest.raises(ValueError, match=r"shape \(1,\): the task's are \(2,\)"):
        check_columns(c, (spaces.Box(-1, 1, (2,)), spaces.Discrete(3)), "offline")
    with pytest.raises(ValueError, match=r"actions of shape \(\): the task's are \(1,\)"):
        check_columns(c, (spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,))), "offline")
    with pytest.raises(ValueError, match="context/a"):
        check_columns(c, (spaces.Dict(a=spaces.Box(-1, 1, (1,))), spaces.Discrete(3)), "offline")
    with pytest.raises(TypeError, match="text"):
        check_columns(c, None, "offline")


def test_the_card_counts() -> None:
    buffer = Offline(Given(EPISODES), size=6)
    drawn(buffer)
    card = buffer.card
    assert (card["episodes"], card["transitions"]) == (3, 6)
    assert card["return"]["mean"] == pytest.approx((0.3 + 1.0 + 4.1) / 3, abs=1e-6)
    assert card["return"]["quantiles"] == pytest.approx([0.3, 0.65, 1.0, 2.55, 4.1], abs=1e-6)
    assert card["length"]["mean"] == 2 and card["finished"] == pytest.approx(1 / 3, abs=1e-6)
    assert describe(card).startswith("3 episodes, 6 transitions; return (trained reward, 1 x task) 1.8 (")
    assert card["coverage"] == 1  # no two transitions are alike
    twice = Offline(Given([*EPISODES, *EPISODES]), size=6)
    drawn(twice)
    assert twice.card["coverage"] == 0.5 and twice.card["digest"] != card["digest"]


# ---------------------------------------------------------------- where data comes from


def right(observation: int, rng: Any) -> int:
    """Of a corridor, the way to the goal."""
    return 1


CORRIDOR = Gridworld(cells=("S...G",), slip=0.0)


def test_a_scripted_policy_plays_the_task() -> None:
    columns = Played(f"{__file__}:right", episodes=3).read(CORRIDOR, 0)
    assert columns["context"].tolist() == [0, 1, 2, 3, 4] * 3
    assert columns["taken"][columns["mask"][:, 0]].tolist() == [1] * 12
    assert columns["cont"].tolist() == [1, 1, 1, 1, 0] * 3  # the goal ends an episode
    cut = Played(f"{__file__}:right", episodes=1, max_steps=2).read(CORRIDOR, 0)
    assert cut["context"].tolist() == [0, 1, 2] and cut["cont"].tolist()[-1] == 1


def test_uniform_actions_come_as_often_as_asked_and_from_the_seed_alone() -> None:
    task = Gridworld(cells=("S....", ".....", "....G"), slip=0.0, limit=50)
    a, b = (Played(f"{__file__}:right", 60, epsilon=0.5).read(task, 3) for _ in range(2))
    assert all(torch.equal(a[n], b[n]) for n in a)
    taken = a["taken"][a["mask"][:, 0]]
    share = float((taken != 1).double().mean())  # three quarters of the uniform ones
    assert abs(share - 0.375) < 5 * (0.375 * 0.625 / len(taken)) ** 0.5
    assert not torch.equal(Played("random", 5).read(task, 0)["taken"], Played("random", 5).read(task, 1)["taken"])


def test_noise_stays_within_the_bounds() -> None:
    task = Gym("Pendulum-v1")
    torque = Played(f"{__file__}:torque", 2, noise=0.25, max_steps=100).read(task, 0)["taken"]
    torque = torque[torque[:, 0] != 0]
    assert float(torque.abs().max()) <= 2 and 0.35 < float((torque - 1).std()) < 0.6  # a quarter of 2, cut
    with pytest.raises(ValueError, match="for a Box with bounds"):
        Played("random", noise=0.1).read(CORRIDOR, 0)
    with pytest.raises(LookupError, match="the task gym/Pendulum-v1 offers no expert"):
        Played().read(task, 0)


@pytest.mark.parametrize("name", ["balance_pole", "swing_up", "climb"])
def test_an_expert_of_another_environment_says_whose_it_is(name: str) -> None:
    policy = f"shuhari.buffers.experts.{name}"
    with pytest.raises(ValueError, match=rf"{name} plays .*: this task's have \[6\]") as found:
        Played(policy, 1).read(Gym("Acrobot-v1"), 0)
    assert f"{policy!r}, which plays the data: set buffer.data" in found.value.__notes__[0]


def torque(observation: Any, rng: Any) -> Any:
    return np.ones(1, np.float32)


def test_parts_in_shares() -> None:
    parts = {"good": Played(f"{__file__}:right", 4), "bad": Played("random", 6)}
    columns = Joined(parts, {"good": 0.5}).read(CORRIDOR, 0)
    assert int(columns["episode"].max()) == 7 and columns["context"][:10].tolist() == [0, 1, 2, 3, 4] * 2
    with pytest.raises(ValueError, match="did you mean 'good'"):
        Joined(parts, {"goood": 0.5})


def test_a_directory_keeps_it_all(tmp_path: Any) -> None:
    columns = columns_of(EPISODES)
    save(columns, tmp_path / "data", source="by hand")
    found = Stored(str(tmp_path / "data")).read(ANY, 0)
    assert found.keys() == columns.keys() and all(torch.equal(found[n], columns[n]) for n in columns)
    card = json.loads((tmp_path / "data" / "card.json").read_text())
    assert card["episodes"] == 3 and card["source"] == "by hand"
    with pytest.raises(FileNotFoundError, match="no data set at"):
        Stored(str(tmp_path / "other")).read(ANY, 0)


def test_arrays_as_others_publish_them(tmp_path: Any) -> None:
    arrays = {
        "observations": np.array([[0.0], [1], [2], [10], [20], [21]]),
        "actions": np.array([[0.0], [1], [2], [3], [4], [5]]),
        "rewards": np.arange(6.0),
        "terminals": np.array([0, 0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 1, 0, 0]),
        "goal": np.arange(6),
    }
    np.savez(tmp_path / "d.npz", **arrays)
    c = Stored(str(tmp_path / "d.npz")).read(CONTINUOUS, 0)
    # the first ends in a terminal state; the second has one transition and no observation after it; the third, two
    assert c["context"][:, 0].tolist() == [0, 1, 2, 2, 20, 21]
    assert c["cont"].tolist() == [1, 1, 1, 0, 1, 1] and c["goal"].tolist() == [0, 1, 2, -1, 4, -1]
    np.savez(tmp_path / "e.npz", **arrays, next_observations=arrays["observations"] + 1)
    e = Stored(str(tmp_path / "e.npz")).read(CONTINUOUS, 0)
    assert e["context"][:, 0].tolist() == [0, 1, 2, 3, 10, 11, 20, 21, 22]
    np.savez(tmp_path / "f.npz", actions=np.zeros(3))
    with pytest.raises(ValueError, match="no array 'observations'"):
        Stored(str(tmp_path / "f.npz")).read(CONTINUOUS, 0)


GOOD: dict[str, Any] = {
    "observations": np.zeros((4, 1)), "actions": np.array([0, 1, 2, 3]), "terminals": np.array([0, 1, 0, 1]),
    "rewards": np.ones(4), "note": np.array(["a"] * 4), "version": np.array(3),
}  # fmt: skip


@pytest.mark.parametrize(("change", "told"), [
    ({}, ""),
    ({"actions": np.array(3)}, r"actions is an array \[\] of int64: expected rows of numbers"),
    ({"observations": np.zeros((3, 1))}, "observations is an array .3, 1. of float64: expected rows of numbers, 4 as"),
    ({"observations": np.array([{}] * 4)}, "observations is an array .4. of object"),
    ({"observations": np.full((4, 1), np.nan)}, "context: row 0 is not finite"),
    ({"observations": np.zeros((4, 2))}, r"context of shape \(2,\): the task's are \(1,\)"),
    ({"rewards": np.ones((4, 2))}, r"rewards is an array \[4, 2\]: expected a number for each row"),
    ({"rewards": np.full(4, np.inf)}, "reward/task has an infinite number"),
    ({"terminals": np.full(4, np.nan)}, "terminals is an array .4. of float64: expected a 0 or 1 for each row"),
    ({"actions": np.array([0, 1, 2, 2000])}, r"actions: row 3 is 2000: the task's are of Discrete\(2000\)"),
    ({"actions": np.array([0, 1, 0.5, 3])}, "actions: row 2 is 0.5"),
    ({"actions": np.array(["a"] * 4)}, "actions is an array .4. of <U1"),
    ({n: np.zeros((0, 1)) for n in ("observations", "actions", "terminals")}, "actions is an array .0, 1."),
])  # fmt: skip
def test_arrays_that_cannot_be_learnt_from_name_their_file(tmp_path: Any, change: dict[str, Any], told: str) -> None:
    file = tmp_path / "d.npz"
    np.savez(file, **{**GOOD, **change})
    if not told:
        assert Stored(str(file)).read(ANY, 0)["taken"].tolist() == [0, 1, 0, 2, 3, 0]
        return
    with pytest.raises(ValueError, match=f"{file}: .*{told}"):
        Stored(str(file)).read(ANY, 0)


BOX: Any = SimpleNamespace(spaces=lambda: (NUMBER, spaces.Box(-2, 2, (1,))))


@pytest.mark.parametrize(("change", "told"), [
    ({}, []),
    ({"actions": np.array([[0.0], [-2], [6], [2.5]])},
     ["actions: row 2 is [6.0], outside of the task's Box [-2, 2], as 0.5 of the rows are: learnt from as they stand"]),
    ({"timeouts": np.zeros(4)}, [
        "no row is marked as an end (terminals, timeouts): its 4 rows are one episode",
        "row 1: its next observation is not the observation of row 2 (so in 1 of 4): learnt from as one episode; mark "
        "in `timeouts` where it was cut"]),
])  # fmt: skip
def test_what_is_odd_in_a_file_is_told_once_with_its_place(
    tmp_path: Any, change: dict[str, Any], told: list[str]
) -> None:
    seen = np.array([[0.0], [1], [5], [6]])
    arrays = {"observations": seen, "next_observations": seen + 1, "actions": np.array([[0.0], [-2], [2], [1]]),
              "rewards": np.ones(4), "terminals": np.zeros(4), "timeouts": np.array([0, 1, 0, 1])}  # fmt: skip
    np.savez(tmp_path / "d.npz", **{**arrays, **change})
    buffer = Offline(Joined({"mine": Stored(str(tmp_path / "d.npz"))}), size=2)
    ctx = context(task=BOX)
    for _ in range(2):
        list(buffer.draw(ctx))
    assert ctx.problems == [f"{tmp_path / 'd.npz'}: {line}" for line in told]


def test_next_observations_of_another_width_are_named(tmp_path: Any) -> None:
    np.savez(tmp_path / "d.npz", **{**GOOD, "observations": np.zeros((4, 2)), "next_observations": np.zeros((4, 1))})
    with pytest.raises(ValueError, match=r"d.npz: observations have shape \[2\], and next_observations \[1\]: .*\[1\]"):
        Stored(str(tmp_path / "d.npz")).read(ANY, 0)


def test_damaged_files_of_arrays_name_themselves(tmp_path: Any) -> None:
    file = tmp_path / "d.npz"
    np.savez_compressed(file, **GOOD)
    whole = file.read_bytes()
    for data in (b"", b"hello", whole[:200], whole[:60] + b"\x07" * 8 + whole[68:], b"\x80\x04K\x03."):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{file}: not an .npz file that can be learnt from"):
            Stored(str(file)).read(ANY, 0)
    for shape, told in (((10**12,), "8000000000000 bytes, and has 48"), ((-6, -1), "an array .-6, -1. of float64")):
        with zipfile.ZipFile(file, "w") as archive:
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
            archive.writestr("actions.npy", head.getvalue() + b"\0" * 48)
        with pytest.raises(ValueError, match=f"{file}: .*actions.npy says that it is .*{told}"):
            Stored(str(file)).read(ANY, 0)


def test_a_file_that_unpacks_to_more_than_there_is_memory_for_is_refused(tmp_path: Any) -> None:
    np.savez_compressed(tmp_path / "d.npz", **GOOD)
    with patch("shuhari.buffers.data_files.measure_memory", lambda: 200), pytest.raises(ValueError, match="for all"):
        Stored(str(tmp_path / "d.npz")).read(ANY, 0)


@pytest.mark.parametrize(("name", "change", "told"), [
    ("mask", None, "no column 'mask'"),
    ("mask", lambda x: x.float(), r"'mask' is \[9, 1\] of torch.float32: expected torch.bool \[N, 1\]"),
    ("child", lambda x: x + 5, "'child' names rows from 4 to 13: expected -1..8"),
    ("last", lambda x: x - 7, "'last' names rows from"),
    ("episode", lambda x: x[:-1], r"'episode' is \[8\], and there are 9 rows"),
    ("cont", lambda x: x * torch.nan, "'cont' has numbers that are not from 0 to 1"),
    ("context", lambda x: x * torch.nan, "context: row 0 is not finite"),
    ("taken", lambda x: x + 2000, "actions: row 0 is 2000"),
    ("reward/task", lambda x: x.long(), "'reward/task' is"),
])  # fmt: skip
def test_columns_that_are_not_what_was_saved_name_their_file(tmp_path: Any, name: str, change: Any, told: str) -> None:
    columns = columns_of(EPISODES)
    kept = {k: x for k, x in columns.items() if k != name} | ({name: change(columns[name])} if change else {})
    (tmp_path / "columns.safetensors").write_bytes(b"".join(tensors.pack(kept)))
    with pytest.raises(ValueError, match=f"{tmp_path}/columns.safetensors: .*{told}"):
        Stored(str(tmp_path)).read(ANY, 0)
    (tmp_path / "columns.safetensors").write_bytes(b"{" * 40)
    with pytest.raises(ValueError, match=f"{tmp_path}/columns.safetensors: not safetensors"):
        Stored(str(tmp_path)).read(ANY, 0)


def test_terminals_of_ogbench_mark_where_a_recording_was_cut(tmp_path: Any) -> None:
    # two recordings of three observations each: the action beside the last observation leads nowhere
    arrays = {
        "observations": np.array([[0.0], [1], [2], [10], [11], [12]]),
        "actions": np.arange(6.0)[:, None],
        "terminals": np.array([0, 0, 1, 0, 0, 1]),
    }
    np.savez(tmp_path / "d.npz", **arrays)
    c = Stored(str(tmp_path / "d.npz"), layout="ogbench").read(CONTINUOUS, 0)
    assert c["context"][:, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert c["mask"][:, 0].tolist() == [True, True, False] * 2 and c["cont"].tolist() == [1.0] * 6
    assert c["taken"][c["mask"][:, 0], 0].tolist() == [0, 1, 3, 4]
    with pytest.raises(ValueError, match="layout is 'minari'"):
        Stored(layout="minari")  # type: ignore[arg-type]


@pytest.fixture
def recorded(tmp_path: Any, monkeypatch: Any) -> Any:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    env, rng, kept = gymnasium.make("CartPole-v1"), np.random.default_rng(0), []
    for seed in range(3):
        states, actions, over = [env.reset(seed=seed)[0]], list[int](), False
        while not over:
            actions.append(int(rng.integers(2)))
            seen, _, over, _, _ = env.step(actions[-1])
            states.append(seen)
        n = len(actions)
        ends = {"terminations": [False] * (n - 1) + [True], "truncations": [False] * n}
        given = {"observations": np.array(states), "actions": np.array(actions), "rewards": [1.0] * n, **ends}
        kept.append(EpisodeBuffer(id=seed, seed=seed, infos={"index": np.arange(n + 1)[:, None]}, **given))
    told = {"algorithm_name": "random", "author": "a", "author_email": "a@b", "code_permalink": "c"}
    made = {"env": env.spec, "description": "made up", **told}
    minari.create_dataset_from_buffers("test/cartpole-v0", kept, data_format="arrow", **made)
    return tmp_path, [(k.observations, len(k.rewards)) for k in kept]


@pytest.mark.filterwarnings("ignore:`eval_env` is set to None")
def test_a_data_set_of_minari(recorded: Any) -> None:
    from shuhari.buffers.minari import Minari

    root, kept = recorded
    task = Gym("CartPole-v1")
    columns = Minari("test/cartpole-v0", columns=("index",)).read(task, 0)
    check_columns(columns, task.spaces(), "offline")
    assert torch.equal(columns["context"], torch.from_numpy(np.concatenate([k[0] for k in kept])))
    assert [float(columns["reward/task"][columns["episode"] == i].sum()) for i in range(3)] == [k[1] for k in kept]
    assert columns["cont"][columns["last"].unique()].tolist() == [0, 0, 0]
    assert columns["index"][:3].tolist() == [[0], [1], [2]]
    assert columns["index"][columns["last"].unique()].tolist() == [[-1]] * 3
    narrow: Any = SimpleNamespace(spaces=lambda: (task.spaces()[0], spaces.Box(-0.5, 0.5, ())))
    (pushed := Minari("test/cartpole-v0")).read(narrow, 0)
    first = int(columns["taken"][columns["mask"][:, 0]].nonzero()[0])
    assert pushed.odd[0].startswith(f"minari: test/cartpole-v0: actions: row {first} is 1, outside of the task's Box")
    path = root / "test" / "cartpole-v0"
    assert int(Minari(path=str(path), episodes=2).read(task, 0)["episode"].max()) == 1
    with pytest.raises(LookupError, match=r"did you mean 'test/cartpole-v0'.*minari download"):
        Minari("test/cartpol-v0").read(task, 0)
    with pytest.raises(ValueError, match="expected one of them"):
        Minari()
    stored = sorted((path / "data").rglob("*.arrow"))
    ipc = pytest.importorskip("pyarrow").ipc
    for file in stored:
        with ipc.open_file(file) as whole:
            rest = whole.read_all().drop_columns(["rewards"])
        with ipc.new_file(file, rest.schema) as out:
            out.write_table(rest)
    with pytest.raises(ValueError, match=r"minari: test/cartpole-v0: its episodes have no 'rewards': expected ob"):
        Minari("test/cartpole-v0").read(task, 0)
    for file in stored:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"minari: test/cartpole-v0: its files cannot be read .*damaged"):
        Minari("test/cartpole-v0").read(task, 0)


# ---------------------------------------------------------------- in a run

RECIPE = f"""
format = 2
threads = 1
steps = 6
[task]
name = "gym/Pendulum-v1"
[models.policy]
use = "deterministic"
hidden = [8]
normalise = true
[rollout]
use = "episode"
[buffer]
use = "offline"
size = 32
data = {{use = "played", policy = "{__file__}:torque", noise = 0.1, episodes = 2, max_steps = 40}}
[part.policy]
terms.nll = {{}}
optimiser = {{use = "adamw", lr = 1e-2}}
"""


def run_of(tmp_path: Any) -> Any:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return load(path)


def test_normalisers_take_their_statistics_from_the_data_set(tmp_path: Any) -> None:
    recipe = run_of(tmp_path)
    run = open_run(recipe)
    reports = loop(run)
    next(reports)
    policy, learner = run.ctx.models["policy"], run.stage.learners["main"]
    net, buffer = policy._inputs, learner.buffer
    whole = buffer._whole["train"]
    rows = whole["context"][whole["mask"][:, 0]].double()
    mean, std = net.moments.mean.clone(), net.moments.std.clone()
    assert torch.allclose(mean, rows.mean(0), atol=1e-4) and torch.allclose(std, rows.std(0, correction=0), atol=1e-4)
    next(reports)
    assert torch.equal(net.moments.mean, mean)  # once
    # a decision lies in [-1, 1], and the environment took twice as much
    assert float(whole["action"].abs().max()) <= 1
    assert torch.equal(whole["action"] * 2, buffer.data.read(run.stage.task, 0)["taken"])


def test_a_normaliser_without_data_fails_in_words(tmp_path: Any) -> None:
    class Mute(Offline):
        def draw(self, ctx: Any) -> Any:
            self.state["told"] = True
            whole = self._load_split("train", ctx)
            yield Batch(whole, self._rows[:8], stream="rl")

    run = open_run(run_of(tmp_path))
    learner: Any = run.stage.learners["main"]
    learner.buffer = Mute(learner.buffer.data)
    with pytest.raises(ValueError, match="'deterministic': normalise = true"):
        next(loop(run))


@pytest.mark.parametrize("known", [True, False])
def test_a_step_that_fails_names_the_reward_that_is_not_known(tmp_path: Any, known: bool) -> None:
    run = open_run(run_of(tmp_path))
    learner: Any = run.stage.learners["main"]
    read = learner.buffer.data.read(run.stage.task, 0)
    read["reward/task"][5] = 0.0 if known else torch.nan
    learner.buffer = Offline(Stored(str(save(read, tmp_path / "data"))), size=10_000)
    learner.parts["policy"].terms["nll"].weight = float("nan")
    message = r"parameter was changed; \d+ of the 10000 .*: .*columns.safetensors: reward/task of row 5 is NaN \(1 of"
    with pytest.raises(FloatingPointError, match=r"parameter was changed$" if known else message):
        next(loop(run))


def test_a_run_without_rollouts_learns_and_resumes_bit_by_bit(tmp_path: Any) -> None:
    recipe = run_of(tmp_path)
    whole = list(train(recipe, tmp_path / "a"))
    assert whole[-1]["policy/loss/nll"] < whole[0]["policy/loss/nll"]
    assert not any("rollout" in k for k in whole[-1])
    (card,) = json.loads((tmp_path / "a" / "data.json").read_text()).values()
    assert card["episodes"] == 2 and card["transitions"] == 80 and Run(tmp_path / "a").get("data") == {
        "main/main/buffer": card
    }
    part = train(recipe, tmp_path / "b")
    for _ in range(3):
        next(part)
    part.close()
    rest = list(train(recipe, tmp_path / "b"))
    assert [r["step"] for r in rest] == [4, 5, 6]
    with open_run(recipe, tmp_path / "a") as a, open_run(recipe, tmp_path / "b") as b:
        for x, y in zip(*(r.ctx.models["policy"].module.state_dict().values() for r in (a, b)), strict=True):
            assert torch.equal(x, y)


def test_a_resumed_run_is_told_the_data_set_again_and_counts_it_once(tmp_path: Any) -> None:
    recipe, events = run_of(tmp_path), list[Any]()
    reports = train(recipe, tmp_path / "run")
    next(reports), next(reports)
    reports.close()

    def heard(self: Any, event: Any) -> None:
        events.append(event)
        hear(self, event)

    hear, moments = Loop.hear, dict[str, Any]()
    with patch.object(Loop, "hear", heard), open_run(recipe, tmp_path / "run") as run:
        moments = {k: v.clone() for k, v in run.ctx.models["policy"].module.state_dict().items() if "count" in k}
    (event,) = (e for e in events if isinstance(e, Loaded))
    assert event.again and len(event.batch) == 82  # two episodes of 40 decisions, each with a closing row
    assert [round(float(x)) for x in moments.values()] == [80]


def test_a_full_disk_leaves_no_half_of_a_data_set(tmp_path: Any) -> None:
    def refuse(path: Any, chunks: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    full = pytest.raises(StoreError, match="data: the disk is full: free some space")
    with patch("shuhari.buffers.recordings.replace_file", refuse), full:
        save(columns_of(EPISODES), tmp_path / "data")
    assert not (tmp_path / "data").exists()
