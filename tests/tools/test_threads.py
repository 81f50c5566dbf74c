"""Threads that wait sleep: set once, before torch is there, unless somebody has chosen otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import os; {before}; import shuhari; shuhari.{name}; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("before", "name", "told"),
    [
        ("pass", "train", "1000"),
        ("pass", "__version__", "None"),  # nothing that computes is imported
        ("import torch", "train", "None"),  # too late
        ("os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'", "train", "None"),
        ("os.environ['GOMP_SPINCOUNT'] = '7'", "train", "7"),
    ],
)
def test_threads_sleep_unless_it_is_too_late_or_set(before: str, name: str, told: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = CODE.format(before=before, name=name)
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
