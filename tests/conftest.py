"""One thread: tiny models are quicker so, several workers share the machine, and bits depend on the number of threads.

What tests write lies in memory, where there is room: a run flushes its files again and again, and tiny runs would wait
for the disk longer than they compute. It is gone in the end; `--basetemp=FOLDER` keeps it.

Files that take long begin first, so that no worker is left with one at the end while the others wait (`pytest -n 3
--dist loadfile --no-loadscope-reorder`, which `make test` says; a file stays with one worker, for the sake of what its
tests share). A name that is missing here costs time, and nothing else.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of numpy, scipy and sklearn, too; ahead of whatever imports them
import pytest
import torch

from memory import make_held, sweep

torch.set_num_threads(1)
MEMORY, ROOM = Path("/dev/shm"), 8 << 30  # bytes
LONG = (  # the longest first; each takes some four seconds or more
    "contracts/test_recipes.py",
    "distributed/test_rays.py",
    "contracts/test_models.py",
    "claims/test_runs.py",
    "contracts/test_methods.py",
    "contracts/test_components.py",
    "distributed/test_learners.py",
    "distributed/test_sharded.py",
    "claims/test_results.py",
    "docs/test_add_a_method.py",
    "test_kill.py",
    "distributed/test_shard_team.py",
    "rollouts/test_vector_workers.py",
    "loop/test_state.py",
    "claims/test_measuring.py",
    "cli/test_train.py",
    "test_examples.py",
    "tools/board/test_board_browser.py",
    "tools/board/test_board_replay.py",
    "rewards/test_maths.py",
    "methods/engine/test_sapo.py",
    "loop/test_resume.py",
    "loop/test_flight.py",
    "tasks/test_reasoning_all.py",
    "cli/test_reading.py",
    "distributed/test_crew.py",
    "models/text/test_decoding.py",
    "tools/test_planning.py",
    "docs/test_guides.py",
    "test_api.py",
    "test_plugins.py",
    "claims/test_sources.py",
    "claims/test_proof.py",
    "claims/test_protocol.py",
    "contracts/test_mutants.py",
    "engines/test_vllm_real.py",
    "engines/test_vllm.py",
    "engines/test_time_limit.py",
    "loop/test_study.py",
    "loop/test_rehearsal.py",
    "methods/curriculum/test_mbtl.py",
    "models/text/test_slots.py",
    "cli/test_corridor.py",
    "methods/engine/test_sapo.py",
    "store/test_database.py",
    "tools/test_serving_live.py",
    "test_wheel.py",
    "tools/test_profile_report.py",
    "tools/test_samples.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    own = config.option.basetemp is None and "PYTEST_XDIST_WORKER" not in os.environ  # whose folders are given to them
    if own and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        sweep(MEMORY)
        folder = make_held(MEMORY)
        config.option.basetemp = folder / "pytest"  # which pytest removes and makes anew: the lock is on what is around
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of `LONG` first, in that order; what is left keeps its order."""
    place = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(LONG)))
