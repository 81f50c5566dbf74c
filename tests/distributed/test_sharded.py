"""A model in shards over four gloo processes: gradients, memory, and files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari.distributed.shard_files import Shards, export, finish, write_part
from shuhari.distributed.sharded import Sharded
from shuhari.learners.parts import Part
from shuhari.models.text.causal import Causal
from shuhari.optimisers.adamw import AdamW

CHILD = Path(__file__).with_name("sharded_child.py")
SIZE = 4
LIMIT = 3.0  # times the weights: what a process may allocate
pytestmark = pytest.mark.timeout(300)  # four processes that import torch, on two cores


def save_model(path: Path, **sizes: Any) -> Causal:
    """A model with two key-value heads as a Hugging Face directory."""
    model = Causal(architecture="llama", context=64, config={"num_key_value_heads": 2}, **sizes)
    torch.manual_seed(0)
    model.build(SimpleNamespace(alphabet="0123456789+-*=() abcdefgh"))
    model.save(path, shard="16MB")
    return model


def run(folder: Path, size: int, limit: int) -> list[Any]:
    """What processes print. The C library is told to give each block of 256 KiB back to the system: what it keeps for
    later would count against the limit."""
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, CHILD, str(rank), str(size), folder, str(limit)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=env)
        for rank in range(size)
    ]  # fmt: skip
    try:
        told = [child.communicate(timeout=280) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, error) in zip(children, told, strict=True):
        assert child.returncode == 0, error
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[Any]]:
    """What four processes say (they import torch, and write files of a model of 10 million parameters: seconds)."""
    folder = tmp_path_factory.mktemp("sharded")
    save_model(folder / "tiny", hidden=12, layers=2, heads=2, intermediate=22)  # 11 ids are no multiple of 4
    big = save_model(folder / "big", hidden=384, layers=6, heads=8, intermediate=1152)
    size = 4 * sum(p.numel() for p in big.module.parameters())
    return folder, size, run(folder, SIZE, int(LIMIT * size))


def test_gradients_in_shards_are_those_of_a_whole_model(found: Any) -> None:
    """In float64; the oracle is the loss over a whole copy in one piece. Computed in bfloat16 they are near it."""
    for told in found[2]:
        off = dict(told["gradients"])
        assert 1e-5 < off.pop("bfloat16") < 0.05
        assert set(off) == {"plain", "cut", "coupled", "bare"} and max(off.values()) < 1e-12, told


def test_a_model_that_no_process_may_hold_is_trained_saved_and_resumed(found: Any) -> None:
    """Weights, gradients and two moments are four times the weights, and each process may have three times them:
    one alone cannot; four can, load and save included."""
    folder, size, told = found
    (alone,) = run(folder, 1, int(LIMIT * size))
    assert "memory" in alone["alone"], alone
    first, second, third, again, same = told[0]["trained"]
    assert all(t["trained"] == told[0]["trained"] for t in told)
    assert first > 0 and first != second != third
    assert third == again and same


def test_exact_weights_that_an_optimiser_keeps_are_saved_beside_the_rounded_ones(found: Any) -> None:
    assert all(told["rounded"] == [True, True, True] for told in found[2]), found[2]


def test_what_was_saved_in_shards_is_a_hugging_face_directory(found: Any, tmp_path: Path) -> None:
    """Exported a tensor at a time; and two steps were made, each of at most lr = 0.01 a weight."""
    folder = found[0]
    export(folder / "saved", folder / "big", tmp_path / "out")
    before, after = (Causal(path=str(p)) for p in (folder / "big", tmp_path / "out"))
    for model in (before, after):
        model.build(SimpleNamespace())
    shards, theirs = Shards(folder / "saved"), dict(before.module.lm.named_parameters())
    for name, p in after.module.lm.named_parameters():
        assert torch.equal(p, shards.read(f"weights/{name}"))
        assert 0 < float((p - theirs[name]).detach().abs().max()) < 0.0201
    assert torch.equal(shards.read("weights/model.norm.weight", 100, 57), after.module.lm.model.norm.weight[100:157])
    with pytest.raises(KeyError, match=r"weights/model.norm.wait.*did you mean"):
        shards.read("weights/model.norm.wait")
    with pytest.raises(FileNotFoundError, match="holds no whole set of shards"):
        Shards(tmp_path)


def test_a_mesh_of_what_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(kind: str) -> str:
        with pytest.raises(ValueError, match=f"mesh of '{kind}'") as raised:
            Sharded.load(tmp_path, SimpleNamespace(device_type=kind), Part((), {}, AdamW()))
        return str(raised.value)

    assert "expected one of 'cpu' or 'cuda'" in told("mps")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "finds no CUDA device here: expected a mesh of 'cpu', over gloo" in told("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert "was built without NCCL" in told("cuda")


def test_a_writer_that_ends_while_it_replaces_a_folder_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends among the renames and removals there is a whole set, the old or the new one."""

    def save(value: float) -> None:
        write_part(tmp_path / ".tmp-a", 0, 1, {"weights/x": torch.full((2, 2), value)}, {"weights/x": 0})
        finish(tmp_path / ".tmp-a", tmp_path / "a", 1, {})

    def read() -> float:
        return float(Shards(tmp_path / "a").read("weights/x")[0, 0])

    for end, found in enumerate([1.0, 1.0, 1.0, 2.0]):  # before the n-th call; the last removes what was there
        save(1.0)
        calls = iter(range(9))

        def stop(call: Any, calls: Any = calls, end: int = end) -> Any:
            def run(*args: Any, **more: Any) -> None:
                if next(calls) == end:
                    raise KeyboardInterrupt
                call(*args, **more)

            return run

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", stop(os.rename))
            patch.setattr(shutil, "rmtree", stop(shutil.rmtree))
            with pytest.raises(KeyboardInterrupt):
                save(2.0)
        assert read() == found, end
    save(3.0)
    assert read() == 3.0 and [p.name for p in tmp_path.iterdir()] == ["a"]
