"""Where weights moved, of changes that are planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shuhari.kernel.findings import AnalysisError
from shuhari.methods.analysis.off_principals.principals import (
    Principals,
    find_angle,
    find_rank,
    find_unchanged,
    leave_out_still,
    match,
    move_randomly,
)

RNG = torch.Generator().manual_seed(0)
BEFORE = torch.randn(40, 30, generator=RNG, dtype=torch.float64)
U, S, V = torch.linalg.svd(BEFORE, full_matrices=False)


def test_the_tolerance_is_of_bfloat16() -> None:
    assert torch.tensor(1.003).bfloat16().item() == 1.0
    assert torch.tensor(1.005).bfloat16().item() == 1.0078125


def test_the_share_of_weights_that_are_as_they_were() -> None:
    """3 of 12 entries change, two of them by less than bfloat16 can tell from 1."""
    before = torch.ones(3, 4, dtype=torch.float64)
    after = before.clone()
    after[0, 0], after[1, 1], after[2, 2] = 1.003, 0.999, 1.005
    assert find_unchanged(before, before, torch.float32) == 1
    assert find_unchanged(before, after, torch.float32) == 0.75
    assert find_unchanged(before, after, torch.bfloat16) == pytest.approx(11 / 12)
    assert find_unchanged(before, before + 1e-9, torch.float32) == 1


def test_the_same_relative_change_leaves_as_many_numbers_alike_at_any_size() -> None:
    """Of weights that are spread over one binade, a change by c of a unit in the last place leaves a share of 1 - c."""
    before = 1 + (torch.arange(4096, dtype=torch.float64).reshape(64, 64) + 0.5) / 4096
    after = before + 0.25 * 2**-7
    for scale in (1.0, 2.0**-10):
        assert find_unchanged(scale * before, scale * after, torch.bfloat16) == pytest.approx(0.75, abs=0.01)
        assert find_unchanged(scale * before, scale * after, torch.float32) == 0


def test_a_scaled_matrix_moves_its_spectrum_and_turns_nothing() -> None:
    found = Principals().compare(BEFORE, 1.1 * BEFORE)
    assert found["spectrum"] == pytest.approx(0.1)
    assert found["rotation"] == pytest.approx(0, abs=1e-6)
    assert found["changed"] == 1 and found["rank"] == 1


def test_a_change_along_the_last_direction_keeps_the_leading_ones() -> None:
    found = Principals().compare(BEFORE, BEFORE + 0.05 * torch.outer(U[:, -1], V[-1]))
    assert found["rotation"] == pytest.approx(0, abs=1e-6)
    assert found["rank"] == pytest.approx(1 / 30)


def test_a_change_of_principal_entries_alone_is_found() -> None:
    k = 3
    lead = ((U[:, :k] * S[:k]) @ V[:k]).abs()
    mask = lead > lead.median()
    found = Principals().compare(BEFORE, BEFORE + 0.01 * mask)
    assert found["principal"] == pytest.approx(1, abs=0.01)
    assert found["changed"] == pytest.approx(0.5, abs=0.01)
    small = BEFORE.abs() < BEFORE.abs().median()
    assert Principals().compare(BEFORE, BEFORE + 0.01 * small)["small"] == pytest.approx(1, abs=0.01)


def test_a_random_change_is_where_chance_has_it() -> None:
    moved = move_randomly(BEFORE, BEFORE + 0.1, np.random.default_rng(0))
    assert float((moved - BEFORE).norm()) == pytest.approx(0.1 * math.sqrt(1200))
    found = Principals().compare(BEFORE, moved)
    assert found["principal"] == pytest.approx(0.5, abs=0.07)
    assert found["small"] == pytest.approx(0.5, abs=0.07)
    assert found["rank"] == 1


def test_a_random_change_has_the_norm_of_every_row_and_column() -> None:
    """Rows grow as 1, 2, ... and columns as 1, 4, 9, ...: the random one is as large in each, with either sign."""
    change = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 31).square()).double()
    change[3] = 0
    noise = move_randomly(BEFORE, BEFORE + change, np.random.default_rng(0)) - BEFORE
    for axis in (0, 1):
        assert noise.norm(dim=axis).tolist() == pytest.approx(change.norm(dim=axis).tolist(), rel=1e-6, abs=1e-9)
    assert (noise < 0).double().mean() == pytest.approx(0.5, abs=0.05)


def test_rows_and_columns_that_never_changed_are_left_out() -> None:
    """2 of 40 rows and 3 of 30 columns: 38 27 of 1200 entries stay. Nothing is left out if nothing changed."""
    change = torch.ones_like(BEFORE)
    change[[5, 7]], change[:, [0, 1, 29]] = 0, 0
    change[0, 4] = 0  # alone in its row
    share, before, after = leave_out_still(BEFORE, BEFORE + change)
    assert share == pytest.approx(1 - 38 * 27 / 1200)
    assert before.shape == after.shape == (38, 27)
    assert int((before == after).sum()) == 1
    assert leave_out_still(BEFORE, BEFORE)[0] == 1 and leave_out_still(BEFORE, BEFORE)[1].shape == (40, 30)


def test_angles_and_ranks_by_hand() -> None:
    axes = torch.eye(4, dtype=torch.float64)
    turned = torch.stack([math.cos(0.3) * axes[0] + math.sin(0.3) * axes[1]])
    assert find_angle(axes[:1].T, turned.T) == pytest.approx(0.3)
    assert find_rank(torch.zeros(3, 3)) == 0
    assert find_rank(torch.outer(axes[0], axes[1]) + torch.outer(axes[2], axes[3])) == 2


def test_a_model_of_another_shape_is_named() -> None:
    with pytest.raises(AnalysisError, match=r"other has no matrix w of shape \(40, 30\) \(of shape \(30, 40\)\)"):
        list(match({"w": BEFORE}, {"w": BEFORE.T}, "other"))
