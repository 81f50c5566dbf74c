"""Devices by name, and what is said of those that this machine has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from shuhari.models.devices import find_device
from shuhari.models.text.causal import Causal


@pytest.mark.parametrize(
    ("name", "there", "told"),
    [
        ("cuda", 0, "device is 'cuda', and torch .* finds none of its kind here.*: expected 'cpu'$"),
        ("cuda:2", 2, "finds 2 of its kind here.*: expected 'cpu', or up to 'cuda:1'"),
        ("gpu", 1, "device is 'gpu': expected cpu, cuda"),
        ("meta", 1, "device is 'meta': expected cpu, cuda"),
    ],
)
def test_what_is_not_there_is_told(name: str, there: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(ValueError, match=told):
        Causal(device=name, hidden=8, layers=1, heads=1, intermediate=8).build(SimpleNamespace(alphabet="ab"))


def test_what_is_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cpu").type == "cpu" and find_device("cuda:1").index == 1
