"""Profiles of runs (`train --profile`): the training loop, the numbers that it writes, and their table.

A profile covers the steps of one process: a resumed run starts a new one, which records its first step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shuhari.config.recipe import Recipe
from shuhari.data import Info
from shuhari.desk.doctor import advise_bfloat16
from shuhari.kernel.profile import Peaks, Profile, Work
from shuhari.ports.hooks import ability
from shuhari.store.files import read_file

NUMBERS, TRACE = "profile.json", "trace.json"
HEADS = ("phase", "seconds", "share", "ms a step", "resident MB", "GPU MB")
SIZES = (1024, 2048, 4096)  # of the square products that measure the peak
BUDGET = 0.8  # seconds for that


def train_profiled(recipe: Recipe, path: Path, **start: Any) -> Iterator[Info]:
    """Train a run like `study.train`, and finally, also after an error, write `profile.json` and `trace.json` into
    `path`."""
    from shuhari.loop.rehearsal import open_rehearsed
    from shuhari.loop.run import loop
    from shuhari.loop.stopping import Stop, end

    run = open_rehearsed(recipe, path, **start)
    reports, memory = loop(run), Peaks()
    recorder = Profile(memory=memory)
    peak, first, last = None, run.ctx.step, run.ctx.step
    try:
        while not run.done():
            with recorder.step(run.ctx.step + 1):
                report = next(reports, None)
            if report is None:
                break
            last = run.ctx.step
            peak = peak or measure_peak(*_place(run.ctx.models))  # a new run makes its models in its first step
            try:
                yield report
            except Stop as stop:
                end(reports, str(stop))
        next(reports, None)  # the summary
    finally:
        reports.close()  # type: ignore[attr-defined]
        memory.close()
        if last > first:
            profile = collect_numbers(recorder, run.ctx.models, first=first + 1, last=last, peak=peak)
            if peak and profile["rates"] and any(rate["flops"] for rate in profile["rates"].values()):
                profile["bfloat16"] = compare_half(peak)
            for name, value in ((NUMBERS, profile), (TRACE, recorder.trace())):
                (path / name).write_text(json.dumps(value, indent=2 if name == NUMBERS else None) + "\n")


def measure_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the best rate of square matrix products, in FLOP/s, on the run's threads, for shares of the peak. Takes
    less than a second, and draws no random number."""
    began, best, at, took = time.perf_counter(), 0.0, 0, 0.0
    for size in SIZES:
        if time.perf_counter() - began + 8 * took > BUDGET:
            break
        a = torch.full((size, size), 0.5, device=device, dtype=dtype)
        for _ in range(4):
            _wait(device)
            t = time.perf_counter()
            a @ a
            _wait(device)
            took = time.perf_counter() - t
            if 2 * size**3 / took > best:
                best, at = 2 * size**3 / took, size
            if time.perf_counter() - began + took > BUDGET:
                break
    name = str(dtype).removeprefix("torch.")
    return {"flop_s": best, "size": at, "device": str(device), "dtype": name, "threads": torch.get_num_threads()}


def compare_half(peak: Mapping[str, Any]) -> float | None:
    """Return how many times faster bfloat16 products are than the float32 products of `peak`; None if the run uses
    another type already."""
    if peak["dtype"] != "float32":
        return None
    half = measure_peak(torch.device(peak["device"]), torch.bfloat16)
    return float(half["flop_s"] / peak["flop_s"])


@dataclass(frozen=True)
class Cost:
    """What a token costs a language model. `parameters`: all but embeddings and head; `trained`: those with a gradient;
    `attention`: layers times the width of all heads."""

    parameters: int
    trained: int
    attention: int

    @classmethod
    def of(cls, model: Any) -> Cost | None:
        """Return the cost of a causal transformer; None for any other model."""
        base: Any = getattr(ability(model, "module"), "base", None)
        if not hasattr(base, "config"):
            return None
        config = base.config.get_text_config()
        embedded = {
            id(p)
            for m in base.modules()
            if isinstance(m, nn.Embedding)
            for p in m.parameters()
        }
        found = [p for p in base.parameters() if id(p) not in embedded]
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = config.num_hidden_layers * config.num_attention_heads
        return cls(
            sum(p.numel() for p in found),
            sum(p.numel() for p in found if p.requires_grad),
            heads * width,
        )

    def flops(self, kind: str, work: Work) -> float:
        """Return the FLOPs of some work. `trained`: for each parameter and token 2 forwards, 2 backwards, and 2 more if
        the parameter has a gradient (6 if all do); plus 12 for each pair of attending tokens, layer and entry of a
        head. `sampled`: a third of that, for decided tokens; prompts, which samples share, and repeated work do not
        count."""
        if kind == "sampled":
            return 2.0 * self.parameters * work.decided + 4.0 * self.attention * work.decided_pairs
        return (4.0 * self.parameters + 2.0 * self.trained) * work.tokens + 12.0 * self.attention * work.pairs


def read(path: Path) -> Any:
    """Read the numbers of the run at `path`; None if it has no profile."""
    return json.loads(read_file(path / NUMBERS)) if (path / NUMBERS).is_file() else None


RATES = {"sampled": "generate", "trained": "update"}  # kind of work -> its phase


def collect_numbers(
    recorder: Profile, models: Mapping[str, Any], *, first: int, last: int, peak: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the content of `profile.json`: seconds are exclusive and add up to `seconds`; sizes in bytes; rates per
    second of their phase; `waits`: 1,001 quantiles of the seconds that tools took."""
    steps, whole = last - first + 1, recorder.seconds
    phases = {
        path: {
            "seconds": p.seconds,
            "share": p.seconds / whole if whole else 0.0,
            "per_step": p.seconds / steps,
            "spans": p.spans,
            "resident": p.resident,
            "device": p.device,
            "edges": recorder.edges.get(path, 0.0),
            "products": p.products,
        }
        for path, p in sorted(recorder.phases.items())
    }
    rates = {}
    for kind, phase in RATES.items():
        done = {role: w for (k, role), w in recorder.done.items() if k == kind}
        took = sum(p.seconds for path, p in recorder.phases.items() if _innermost(path) == phase)
        if not done or not took:
            continue
        tokens = max(w.decided if kind == "sampled" else w.tokens for w in done.values())
        distinct = {id(models[r]): (Cost.of(models[r]), w) for r, w in done.items() if r in models}
        flops = sum(cost.flops(kind, w) for cost, w in distinct.values() if cost is not None)
        rates[kind] = {"tokens": tokens, "seconds": took, "tokens_s": tokens / took, "flops": flops or None,
                       "share_of_peak": flops / took / peak["flop_s"] if flops and peak else None}  # fmt: skip
    return {
        "first_step": first,
        "last_step": last,
        "resumed": first > 1,
        "seconds": whole,
        "phases": phases,
        "rates": rates,
        "peak": peak,
        "waits": np.quantile(recorder.waits, np.linspace(0, 1, 1001)).tolist() if recorder.waits else [],
    }


def table_rows(profile: Mapping[str, Any]) -> list[tuple[str, Any, Any, Any, Any, Any]]:
    """Return the table of phases: name, seconds, share, milliseconds a step, peaks of resident and GPU memory in MB.
    Nested phases are indented."""
    out = []
    for path, p in profile["phases"].items():
        name = "  " * path.count("/") + path.rpartition("/")[2]
        device = p["device"] / 1e6 if p["device"] else None
        out.append((name, p["seconds"], f"{p['share']:.1%}", p["per_step"] * 1e3, p["resident"] / 1e6, device))
    return out


def table_lines(profile: Mapping[str, Any]) -> list[str]:
    """Return the text around the table."""
    first, last = profile["first_step"], profile["last_step"]
    of = f"steps {first} to {last}" + (" (since the run was resumed)" if profile["resumed"] else "")
    out = [f"profile of {of}: {profile['seconds']:.4g} s in steps"]
    for kind, rate in profile["rates"].items():
        what = "tokens" if rate["flops"] else "decisions"  # for other models than transformers
        text = f"{kind}: {rate['tokens_s']:,.0f} {what}/s over {rate['seconds']:.4g} s"
        if rate["flops"]:
            text += f", {rate['flops'] / rate['seconds'] / 1e9:,.1f} GFLOP/s"
        if rate["share_of_peak"] is not None:
            text += f", {rate['share_of_peak']:.1%} of the matmul peak"
        out.append(text)
    if peak := profile["peak"]:
        where = f"{peak['device']}, {peak['dtype']}, {peak['threads']} threads, {peak['size']} squared"
        out.append(f"matmul peak: {peak['flop_s'] / 1e9:,.1f} GFLOP/s ({where})")
    if times := profile.get("bfloat16"):
        out.append(f"bfloat16: {advise_bfloat16(times)}")
    return out


def _innermost(path: str) -> str:
    """Return the innermost phase of RATES on a path: sampling inside an update counts as sampling."""
    return next((part for part in reversed(path.split("/")) if part in RATES.values()), "")


def _place(models: Mapping[str, Any]) -> tuple[torch.device, torch.dtype]:
    """Return the device and type that the largest parameter is computed with."""
    found = [
        (p, m.module)
        for m in models.values()
        for p in m.module.parameters()
    ]
    if not found:
        return torch.device("cpu"), torch.float32
    largest, module = max(found, key=lambda x: x[0].numel())
    return largest.device, getattr(module, "dtype", None) or largest.dtype


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
