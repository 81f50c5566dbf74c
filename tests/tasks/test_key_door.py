"""Two rooms, a key and a door: the way by hand, the shortest by search, chance by the exact distribution."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from shuhari.tasks.worlds.key_door import BUMP, FIRST, GOAL, KEY, LOCKED, MESSAGES, UNLOCK, KeyDoor

UP, RIGHT, DOWN, LEFT = range(4)


def walk(world: KeyDoor, moves: list[int]) -> list[tuple[int, float, bool, bool, int]]:
    world.reset(seed=0)
    steps = [world.step(move) for move in moves]
    return [(seen, reward, won, late, info["message"]) for seen, reward, won, late, info in steps]


def test_a_walk_by_hand() -> None:
    """`D` is shut until `K` was taken; the goal pays 1 and ends the episode."""
    world = KeyDoor(("aSDG", "K#.."), slip=0.0)
    found = walk(world, [RIGHT, UP, DOWN, LEFT, DOWN, UP, RIGHT, RIGHT, RIGHT])
    assert [step[4] for step in found] == [LOCKED, BUMP, BUMP, FIRST, KEY, FIRST, 0, UNLOCK, GOAL]
    assert [step[0] for step in found] == [1, 1, 1, 0, 8 + 4, 8 + 0, 8 + 1, 16 + 2, 16 + 3]
    assert [step[1] for step in found] == [0.0] * 8 + [1.0] and found[-1][2:4] == (True, False)
    assert len(MESSAGES) == FIRST + 3


def test_an_episode_is_cut_at_its_limit() -> None:
    found = walk(KeyDoor(("S.KDG",), limit=3, slip=0.0), [RIGHT, LEFT, LEFT])
    assert [step[3] for step in found] == [False, False, True]


def search(world: KeyDoor) -> int:
    """The number of moves to the goal on a shortest path over (phase, cell)."""
    found, queue = {(0, world.start): 0}, deque([(0, world.start)])
    while queue:
        where = queue.popleft()
        for a in range(4):
            to = int(world._phase[*where, a]), int(world._next[*where, a])
            if to not in found:
                found[to] = found[where] + 1
                queue.append(to)
    return min(n for (_, cell), n in found.items() if cell == world._goal)


def test_sixteen_moves_and_one_random_episode_in_thirteen_hundred_lead_to_the_goal() -> None:
    """The distribution over (phase, cell) after 40 uniformly random moves, one after the other."""
    world = KeyDoor()
    assert search(world) == 16
    n = world._size
    p, won = np.zeros((3, n)), 0.0
    p[0, world.start] = 1.0
    for _ in range(40):
        after = np.zeros_like(p)
        np.add.at(after, (world._phase, world._next), p[:, :, None] / 4)
        won += after[:, world._goal].sum()
        after[:, world._goal] = 0
        p = after
    assert p.sum() + won == pytest.approx(1) and 1 / won == pytest.approx(1345, abs=1)


@pytest.mark.parametrize("cells", [("S.KG",), ("SSKDG",), ("SKDG", "."), ("SKDGx",), ()])
def test_maps_that_are_none_are_refused(cells: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"key_door: .*expected"):
        KeyDoor(cells)
