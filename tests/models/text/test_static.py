"""Padding and sharing of contexts in static batches; sampling itself is tested in `test_causal`."""

import numpy as np
import torch

from shuhari.models.text.static import find_distinct, find_positions, pad_left


def test_padding_on_the_left() -> None:
    rows = [np.array([5, 6, 7], np.int32), np.array([8], np.int32)]
    ids, seen = pad_left(rows, 0, 2, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert seen is not None and seen.tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert find_positions(seen, 3).tolist() == [[0, 1, 2], [0, 0, 0]]
    assert pad_left(rows[:1] * 2, 0, 2, torch.device("cpu"))[1] is None


def test_distinct_contexts_in_order_of_appearance() -> None:
    rows = [np.array(x, np.int32) for x in ([1, 2], [3], [1, 2], [3])]
    unique, index = find_distinct(rows)
    assert [u.tolist() for u in unique] == [[1, 2], [3]] and index.tolist() == [0, 1, 0, 1]
