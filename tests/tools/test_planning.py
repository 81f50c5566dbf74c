"""The planner: numbers worked out by hand, and runs in virtual time, whose clock is another implementation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.desk.planning.choose import best_split, limits, plan, scale, splits
from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.measured import fit
from shuhari.desk.planning.setting import Outcome, Setting
from shuhari.desk.planning.simulate import simulate
from shuhari.desk.planning.workload import Turn, Workload, lognormal, of_lengths
from shuhari.loop.run import loop, open_run
from small_runs import write_sums

TICK = Hardware(step=1.0, update=5.0, train=0.0, slots=100)


def played(setting: Setting, hardware: Hardware, groups: list[list[int]]) -> Outcome:
    """A run whose groups have these lengths, in the order in which they are asked for, from the first again at the
    end."""
    fixed = of_lengths(groups).groups
    return simulate(setting, hardware, (fixed[i % len(fixed)] for i in range(10_000)))


def test_synchronous_steps_take_the_longest_answer_and_the_update() -> None:
    found = played(Setting("sync", groups=2, steps=3), TICK, [[3, 7], [2, 4]])
    assert found.ends == [12.0, 24.0, 36.0]  # 7 + 5
    assert found.idle == pytest.approx(0.0) and found.sampling_idle == pytest.approx(5 / 12)
    assert found.tokens == pytest.approx((3 + 7 + 2 + 4) / 12) and found.staleness == 0


def test_a_step_of_the_decoder_costs_by_rows_prompts_and_what_is_attended_to() -> None:
    hardware = Hardware(step=1.0, row=0.1, read=0.01, cached=0.001, update=0.0, train=0.0)
    groups = of_lengths([[2, 4]], read=10).groups
    found = simulate(Setting("sync", groups=1, steps=1), hardware, iter(groups))
    # the prompt is read once, which gives the first tokens; then rows attend to 11 tokens each, and to one more a step
    steps = [1.2 + 0.1, 1.2 + 0.022, 1.1 + 0.012, 1.1 + 0.013]
    assert found.ends == [pytest.approx(sum(steps))]


def test_answers_wait_for_slots() -> None:
    found = played(Setting("sync", groups=1, steps=1), replace(TICK, slots=2), [[5, 2, 4, 1]])
    # 5 and 2 run; 4 follows 2 and ends at 6; 1 follows 5 and ends at 6
    assert found.ends == [11.0]


def test_replicas_share_the_rows() -> None:
    slow = Hardware(step=0.0, row=1.0, update=0.0, train=0.0)
    assert played(Setting("sync", 1, 1, groups=1, steps=1), slow, [[4] * 4]).ends == [16.0]
    assert played(Setting("sync", 4, 4, groups=1, steps=1), slow, [[4] * 4]).ends == [4.0]
    assert played(Setting("sync", 4, 4, groups=1, steps=1), replace(slow, replica=2), [[4] * 4]).ends == [8.0]


def test_tools_are_waited_for_while_other_rows_go_on() -> None:
    for wait, want in ((10.0, 20.0), (30.0, 35.0)):  # 2 + 10 + 3 < 20; 2 + 30 + 3
        group = ((Turn(1, 2, wait), Turn(4, 3)), (Turn(1, 20),))
        assert simulate(Setting("sync", groups=1, steps=1), replace(TICK, update=0.0), [group]).ends == [want]


def test_asynchronous_steps_take_the_longer_of_both() -> None:
    for length, want in ((3, 5.0), (9, 9.0)):  # an update takes 5
        for mode in ("async", "partial"):
            setting = Setting(mode, 1, 1, groups=2, staleness=1, steps=12)
            found = played(setting, replace(TICK, slots=2), [[length], [length]])
            assert found.seconds == pytest.approx(want)
            assert found.staleness_max <= 1


def test_the_first_asynchronous_step_has_to_wait_for_its_answers() -> None:
    found = played(Setting("partial", 1, 1, groups=1, staleness=1, steps=3), TICK, [[4]])
    # both groups are asked for at 0 and there at 4; updates at 4-9, 9-14; a third asked for at 9 is there at 13
    assert found.ends == [9.0, 14.0, 19.0]


def test_new_weights_wait_for_what_runs_unless_it_is_interrupted() -> None:
    hardware = replace(TICK, slots=10, read=0.5)
    groups = [[2], [20], [2], [2], [2], [2]]
    drained = played(Setting("async", 1, 1, groups=1, staleness=1, steps=1), hardware, groups)
    assert drained.ends == [20.0]  # the update ends at 7, the row of 20 tokens at 20
    cut = played(Setting("partial", 1, 1, groups=1, staleness=1, steps=1), hardware, groups)
    assert cut.ends == [7.0]
    again = played(Setting("partial", 1, 1, groups=1, staleness=1, steps=2), hardware, groups)
    # at 7 the 7 tokens of the long row are read again: 3.5 s; it ends at 23.5, the other at 12.5, which is taken once
    # the long one, which is due, is there
    assert again.ends == [7.0, 28.5]


def test_portions_are_learnt_from_as_they_come() -> None:
    hardware = Hardware(step=1.0, update=0.0, train=1.0, slots=10)
    setting = Setting("sync", 1, 1, apart=True, groups=2, steps=1)
    assert played(setting, hardware, [[2], [10]]).ends == [22.0]  # 10, then 12
    assert played(replace(setting, stream=2), hardware, [[2], [10]]).ends == [20.0]  # 2 to 4, and 10 to 20


def test_weights_go_by_a_tree_or_from_one() -> None:
    tree = Hardware(weights=100.0, bandwidth=10.0, latency=1.0)
    assert [tree.broadcast(n) for n in (1, 3, 7, 1023)] == [11.0, 12.0, 13.0, 20.0]
    assert replace(tree, spread="star").broadcast(7) == 77.0
    assert tree.learn(1000.0, 1) == 0.1 and tree.learn(1000.0, 2) == pytest.approx(0.05 + 20 + 2)


def test_the_driver_deals_out_one_message_after_another() -> None:
    found = played(
        Setting("sync", 4, 4, groups=4, steps=1), replace(TICK, driver=1.0, update=0.0), [[1], [1], [1], [1]]
    )
    # asked for at 1, 2, 3, 4; written at 2, 3, 4, 5; told behind the four that asked: 5, 6, 7, 8
    assert found.ends == [8.0] and found.driver == pytest.approx(1.0)


def test_a_shared_machine_halves_while_it_learns() -> None:
    setting = Setting("partial", groups=1, staleness=1, steps=1, shared=True)
    found = played(setting, TICK, [[2], [4]])
    # at 2 an update of 5 s begins beside the row that has 2 steps left: 4 s for 2 of each; the other 3 s are its own
    assert found.ends == [9.0]


def write_virtual(staleness: int, slots: int, train: float) -> str:
    own = f"staleness = {staleness}\nslots = {slots}\nvirtual = {{decode = 0.01, train = {train}}}\n"
    return f"{write_sums(steps=12, size=3)}[engine]\n{own}"


@pytest.mark.parametrize(
    ("staleness", "slots", "train"), [(0, 64, 0.0303), (1, 4, 0.0303), (2, 64, 0.1031), (2, 2, 0.0131)]
)
def test_virtual_runs_take_the_time_that_is_planned(staleness: int, slots: int, train: float, tmp_path: Path) -> None:
    """The virtual clock of the library runs the whole loop; the same lengths planned take the same time."""
    (tmp_path / "r.toml").write_text(write_virtual(staleness, slots, train))
    run = open_run(load(str(tmp_path / "r.toml")))
    groups: dict[int, list[int]] = {}
    seconds: list[float] = []
    for report in loop(run):
        seconds.append(report["spent/virtual_seconds"])
        for group in run.ctx.groups:
            ticket = int(group[0].request.key.rpartition("#")[2])
            groups[ticket] = [len(t.steps[0].action) for t in group]
    assert sorted(groups) == list(range(len(groups)))
    setting = Setting(
        "partial" if staleness else "sync", groups=3, staleness=staleness, steps=12, early=True, ends=True
    )
    hardware = Hardware(step=0.01, update=train, train=0.0, slots=slots, resume=False)
    found = played(setting, hardware, [groups[i] for i in range(len(groups))])
    assert np.allclose(found.ends, seconds, rtol=1e-6), (found.ends, seconds)


def test_least_squares_find_the_costs_that_made_them() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack(
        [np.ones(200), rng.integers(1, 64, 200), rng.integers(0, 2, 200) * 300, rng.integers(0, 9000, 200)]
    )
    for want in ([2e-3, 1e-4, 5e-6, 1e-7], [2e-3, 1e-4, 0.0, 0.0]):
        y = np.column_stack([x, x @ want])
        assert fit((y.T @ y).tolist()) == pytest.approx(want, abs=1e-9)
    y = np.column_stack([x, x @ [2e-3, 1e-4, 0.0, -1e-7]])  # none is below 0
    assert min(fit((y.T @ y).tolist())) >= 0
    y = np.column_stack([x, x @ [0.0, 0.0, 0.0, 1e-7]])  # timings of a busy machine may say that steps are free
    assert fit((y.T @ y).tolist())[:2] == [0, 0]
    assert max(fit((y.T @ y).tolist(), needed=(0, 1))[:2]) > 0


def test_lengths_have_the_mean_and_the_limit_that_were_asked_for() -> None:
    found = lognormal(3000, limit=8192, read=100, n=8)
    lengths = [a[0].new for g in found.groups for a in g]
    assert np.mean(lengths) == pytest.approx(3000, rel=0.01) and max(lengths) == 8192
    with pytest.raises(ValueError, match="below the limit"):
        lognormal(9000, limit=8192, read=100, n=8)


def test_the_best_split_makes_both_sides_as_fast() -> None:
    # a device samples 8 tokens a second of its 8 rows, and learns 24: three sample for one that learns
    hardware = Hardware(step=1.0, slots=8, train=1 / 24, price=2.0)
    setting = Setting("partial", groups=64, staleness=2, steps=10)
    found = best_split(setting, 8, hardware, of_lengths([[20, 20, 20, 20]]))
    assert found.setting.sampling == 6 and found.outcome.tokens == pytest.approx(48, rel=0.05)
    assert found.cost == pytest.approx(8 * 2.0 / 3600 / found.outcome.tokens * 1e6)
    with pytest.raises(ValueError, match="cannot be split"):
        best_split(setting, 1, hardware, of_lengths([[20]]))
    assert splits(4, 1) == [1, 2, 3] and all(n % 4 == 0 for n in splits(1024, 4))


def test_a_part_stands_for_many_devices() -> None:
    hardware = Hardware(step=0.01, row=1e-4, slots=64, train=1e-5)
    work = lognormal(300, limit=1000, read=50, n=8)
    setting = Setting("partial", 96, 32, groups=1500, staleness=1, steps=6)
    whole = simulate(setting, hardware, work.stream())
    part = plan(replace(setting, groups=1500 * 4, sampling=96 * 4, training=32 * 4), hardware, work)
    assert part.outcome.tokens == pytest.approx(4 * whole.tokens, rel=0.03)


def test_what_nobody_shares_is_the_first_bottleneck() -> None:
    hardware = Hardware(step=0.1, slots=64, train=1e-3, driver=1e-3)
    work, setting = of_lengths([[100, 100, 100, 100]]), Setting("partial", groups=8, staleness=1, steps=6)
    found = scale((8, 64, 512, 4096), setting, hardware, work, split=0.5, base=8)
    assert found[0].bottleneck == "" and found[-1].bottleneck == "driver"
    # 2 messages an answer, 4 answers a device and step: 8 ms of the driver a device and step
    few = found[0].plan.outcome.seconds
    assert limits(setting, hardware, work, 8, few)["driver"] == pytest.approx(few / 8e-3)
    star = replace(hardware, weights=100.0, bandwidth=50.0, latency=0.0, spread="star", replica=2)
    assert limits(setting, star, work, 8, 21.0)["weights"] == 2 * 10 and limits(setting, hardware, work, 8, few)[
        "weights"
    ] == float("inf")
    assert found[-1].plan.outcome.seconds == pytest.approx(4096 * 8e-3, rel=0.1)


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match="staleness is 1"):
        Setting("sync", staleness=1)
    with pytest.raises(ValueError, match="slots is 0: expected a number of 1 or more"):
        Hardware(slots=0)
    with pytest.raises(ValueError, match="at least one token"):
        Workload(())
