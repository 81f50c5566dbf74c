"""One of the processes of `test_sharded`: RANK SIZE FOLDER WHAT. Prints JSON."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed

from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.distributed.shares import cut_shares
from shuhari.kernel.pack import pack
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.models.text.causal import Causal
from shuhari.needs import packs
from shuhari.objectives.clip import Clip
from shuhari.objectives.log_ratio import LogRatio
from shuhari.optimisers.adamw import AdamW

dist: Any = torch.distributed


def make_batch() -> Batch:
    """Groups of four rows of 3 to 9 tokens with one prompt each, and an advantage."""
    rng, found = np.random.default_rng(0), []
    for g in range(3):
        prompt = rng.integers(4, 20, 4 + g).astype(np.int32)
        request = Request(Problem(str(g), "", None), n=4)
        for _ in range(4):
            action = rng.integers(4, 20, rng.integers(3, 10)).astype(np.int32)
            found.append(Trajectory(request, (Step.of(prompt, action, np.full(len(action), -3.0, np.float32)),)))
    batch = pack(found).put({"weight/rl": torch.ones(12)})
    x = torch.randn(batch["mask"].shape, generator=torch.Generator().manual_seed(1)) * batch["mask"]
    return batch.put({"advantage": x})


def make_part(*, coupled: bool, store: Any = "") -> Part:
    terms = {"clip": Term(Clip(low=0.9, high=9.0))}
    if coupled:
        terms = {"pair": Term(LogRatio(centre="mean", over="behaviour", beta=0.5), reduce="row"), **terms}
    return Part(("policy",), terms, AdamW(lr=1e-2, clip=0.5, store=store))


def take_weight(batch: Batch, part: Part, model: Any, size: int) -> Batch:
    """The same, where no row that rank 1 is given has a weight: its micro-batch has no loss."""
    rows = cut_shares(batch, size, packed=packs(part.live, {"policy": model}))[1]
    weight = batch["weight/rl"].clone()
    weight[rows] = 0
    return batch.put({"weight/rl": weight})


def limit_memory(more: int) -> None:
    """Of what this process may allocate from here on."""
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + more, used + more))


EXACT = {"dtype": torch.float64}


def measure_gradients(path: Path, mesh: Any) -> dict[str, float]:
    """How far gradients in shards are from those of a whole copy in float64, as a share, of losses and settings."""
    from shuhari.distributed.sharded import Sharded

    whole, found = Causal(path=str(path)), {}
    whole.build(SimpleNamespace())
    whole.module.double()
    named = dict(whole.module.lm.named_parameters())
    for name, coupled, tokens, recompute, how in (
        ("plain", False, None, False, EXACT),
        ("cut", False, 30, True, EXACT),
        ("coupled", True, 30, False, EXACT),
        ("bare", False, None, False, EXACT),
        ("bfloat16", False, 30, True, {"compute": torch.bfloat16}),
    ):
        part, batch = make_part(coupled=coupled), make_batch()
        if name == "bare":
            batch = take_weight(batch, part, whole, mesh.size())
        ctx = testing.context(models={"policy": whole})
        Loss(batch, part, "policy", ctx, list(named.values()), None).backward()
        part = make_part(coupled=coupled)
        sharded = Sharded.load(path, mesh, part, recompute=recompute, **how)
        ctx = testing.context(models={"policy": sharded.model})
        ctx.team = sharded
        own = list(sharded.shards.values())
        Loss(batch, part, "policy", ctx, own, tokens, None, ("main", "policy")).backward()
        worst = size = 0.0
        for n, shard in sharded.shards.items():
            first, rows = sharded.find_range(n)
            want = named[n].grad[first : first + rows]
            worst, size = worst + float((shard.grad - want).abs().sum()), size + float(want.abs().sum())
        found[name] = worst / size
        for p in named.values():
            p.grad = None
    return found


def train(path: Path, mesh: Any, folder: Path) -> list[Any]:
    """Two steps, saved; a third; and the third of what was saved."""
    from shuhari.distributed.sharded import Sharded

    batch, told = make_batch(), []
    sharded = Sharded.load(path, mesh, make_part(coupled=False), recompute=True)
    ctx = testing.context(models={"policy": sharded.model})
    for _ in range(2):
        told.append(sharded.step(batch, ctx, 40)["grad_norm"])
    sharded.save(folder)
    told.append(sharded.step(batch, ctx, 40)["grad_norm"])
    ends = {n: p.detach().double().sum().item() for n, p in sharded.shards.items()}
    del sharded, ctx
    again = Sharded.load(path, mesh, make_part(coupled=False), recompute=True, weights=folder)
    ctx = testing.context(models={"policy": again.model})
    told.append(again.step(batch, ctx, 40)["grad_norm"])
    same = all(p.detach().double().sum().item() == ends[n] for n, p in again.shards.items())
    return [*told, same]


def resume_rounded(path: Path, mesh: Any, folder: Path) -> list[bool]:
    """Of an optimiser that keeps exact weights beside rounded ones: whether these are two, both are as they were saved,
    and a step more gives the same bits."""
    from shuhari.distributed.sharded import Sharded

    def find(one: Any) -> list[torch.Tensor]:
        return [*(p.detach().clone() for p in one.shards.values()),
                *(x.clone() for x in one.part.optimiser.state["weights"].values())]  # fmt: skip

    def step(one: Any) -> list[torch.Tensor]:
        ctx = testing.context(models={"policy": one.model})
        one.step(make_batch(), ctx, 40)
        return find(one)

    def compare(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))

    sharded = Sharded.load(path, mesh, make_part(coupled=False, store="bfloat16"))
    before = step(sharded)
    sharded.save(folder)
    again = Sharded.load(path, mesh, make_part(coupled=False, store="bfloat16"), weights=folder)
    n = len(sharded.shards)
    two = any(not torch.equal(x, y) for x, y in zip(before[:n], before[n:], strict=True))
    return [two, compare(before, find(again)), compare(step(sharded), step(again))]


def alone(path: Path) -> str:
    """What becomes of the same model and optimiser in one process under the same limit."""
    try:
        model = Causal(path=str(path))
        model.build(SimpleNamespace())
        part = make_part(coupled=False)
        params = list(model.module.parameters())
        part.optimiser.bind(params)
        ctx = testing.context(models={"policy": model})
        part.optimiser.step(Loss(make_batch(), part, "policy", ctx, params, 40), 0.0)
    except (MemoryError, RuntimeError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "it fits"


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if size == 1:
        Causal(path=str(folder / "tiny")).build(SimpleNamespace())  # which imports all
        limit_memory(int(sys.argv[4]))
        print(json.dumps({"alone": alone(folder / "big")}))
        return
    from datetime import timedelta

    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "meet"), size), rank=rank, world_size=size,
                            timeout=timedelta(seconds=300))  # fmt: skip
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    found: dict[str, Any] = {"gradients": measure_gradients(folder / "tiny", mesh)}
    found["rounded"] = resume_rounded(folder / "tiny", mesh, folder / "rounded")
    limit_memory(int(sys.argv[4]))
    found["trained"] = train(folder / "big", mesh, folder / "saved")
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
