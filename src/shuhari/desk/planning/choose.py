"""Chooses how to use devices: the modes side by side, the best split between sampling and training, the cost, and the
first bottleneck at scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.setting import Outcome, Setting
from shuhari.desk.planning.simulate import simulate
from shuhari.desk.planning.workload import Workload

ROWS = 12_000  # answers a step that are simulated singly; beyond, devices and groups are simulated by a smaller number
SIZES = (8, 64, 512, 4096, 10_000)
SHARE = 0.1  # of the time: whatever takes more is a bottleneck


@dataclass(frozen=True)
class Plan:
    """A setting and its simulated outcome; `cost` of a million trained tokens, in the currency of the price."""

    setting: Setting
    outcome: Outcome
    cost: float


def plan(setting: Setting, hardware: Hardware, workload: Workload, seed: int = 0) -> Plan:
    """Simulate a setting; a large one is scaled down."""
    scale = max(1.0, setting.groups * workload.size / ROWS)
    replicas = setting.sampling // hardware.replica
    scale = min(scale, max(1.0, replicas / 8), max(1.0, setting.training / 8), setting.groups / 4)
    used = setting
    if scale > 1:
        sampling, training, groups = (
            max(1, round(x / scale)) for x in (setting.sampling, setting.training, setting.groups)
        )
        sampling = max(hardware.replica, sampling // hardware.replica * hardware.replica)
        scale = setting.groups / groups
        used = replace(setting, sampling=sampling, training=training, groups=groups, scale=scale)
        if setting.mode == "sync" and not setting.apart:
            used = replace(used, training=sampling)
    outcome = simulate(used, hardware, workload.stream(seed))
    hours = outcome.seconds / 3600
    tokens = outcome.tokens * outcome.seconds
    cost = setting.devices * hardware.price * hours / tokens * 1e6 if tokens else math.inf
    return Plan(setting, outcome, cost)


def splits(devices: int, replica: int) -> list[int]:
    """Return the numbers of sampling devices to try, in whole replicas: all splits of a few devices, a grid of many."""
    most = devices - 1
    counts = range(replica, most + 1, replica)
    if len(counts) <= 16:
        return list(counts)
    return sorted({max(replica, min(most, round(devices * i / 16) // replica * replica)) for i in range(1, 16)})


def best_split(setting: Setting, devices: int, hardware: Hardware, workload: Workload) -> Plan:
    """Return the split with the most tokens a second; for many devices the grid's best is refined once. Raises
    ValueError if there are too few devices to split."""
    if devices <= hardware.replica:
        raise ValueError(f"{devices} devices cannot be split: a replica of the engine takes {hardware.replica}, and "
                         "training at least 1")  # fmt: skip
    found: dict[int, Plan] = {}

    def try_out(counts: Iterable[int]) -> Plan:
        for n in counts:
            if n not in found:
                found[n] = plan(replace(setting, sampling=n, training=devices - n), hardware, workload)
        return max(found.values(), key=lambda p: p.outcome.tokens)

    grid = splits(devices, hardware.replica)
    best = try_out(grid)
    gap = max((b - a for a, b in pairwise(grid)), default=0) // 2
    near = [best.setting.sampling + d for d in (-gap, gap)]
    fine = [n // hardware.replica * hardware.replica for n in near]
    return try_out(n for n in fine if hardware.replica <= n < devices) if gap else best


def compare(
    modes: Sequence[str], devices: int, split: int, setting: Setting, hardware: Hardware, workload: Workload
) -> list[Plan]:
    """Simulate each mode on these devices. `setting`: of an asynchronous mode. `split`: number of sampling devices, 0
    for the best; mode `sync` uses all devices for both."""
    found = []
    for mode in modes:
        if mode == "sync":
            own = replace(setting, mode=mode, shared=False, staleness=0.0, sampling=devices, training=devices)
            found.append(plan(own, hardware, workload))
            continue
        own = replace(setting, mode=mode, shared=False)
        if devices < 2 and len(modes) > 1:  # one device cannot be split
            continue
        if split:
            found.append(plan(replace(own, sampling=split, training=devices - split), hardware, workload))
        else:
            found.append(best_split(own, devices, hardware, workload))
    return found


@dataclass(frozen=True)
class Scale:
    """A number of devices, with the same number of groups a device. Shares are of a step; `efficiency`: tokens per
    second and device, relative to the fewest devices; `bottleneck`: what takes more than a tenth of a step, "" if
    nothing does."""

    devices: int
    plan: Plan
    weights: float
    driver: float
    store: float
    efficiency: float
    bottleneck: str


def scale(
    sizes: Sequence[int], setting: Setting, hardware: Hardware, workload: Workload, *, split: float, base: int
) -> list[Scale]:
    """Simulate weak scaling: `base` devices have the setting's groups, more devices proportionally more. `split`: the
    share of devices that sample, for asynchronous modes."""
    found: list[Scale] = []
    for devices in sizes:
        groups = max(1, round(setting.groups * devices / base))
        sampling = max(hardware.replica, round(devices * split) // hardware.replica * hardware.replica)
        training = devices - sampling if setting.mode != "sync" else devices
        own = replace(setting, sampling=sampling if setting.mode != "sync" else devices, training=max(1, training),
                      groups=groups, shared=False)  # fmt: skip
        result = plan(own, hardware, workload)
        answers = groups * workload.size
        weights = hardware.broadcast(max(1, own.sampling // hardware.replica))
        seconds = result.outcome.seconds
        stored = answers * hardware.store * hardware.kept
        parts = {
            "weights": weights / seconds,
            "driver": 2 * answers * hardware.driver / seconds,
            "store": stored / seconds,
        }
        per = result.outcome.tokens / devices
        first = found[0].plan.outcome.tokens / found[0].devices if found else per
        worst = max(parts, key=lambda k: parts[k])
        name = worst if parts[worst] > SHARE else ""
        found.append(Scale(devices, result, efficiency=per / first, bottleneck=name, **parts))
    return found


def limits(setting: Setting, hardware: Hardware, workload: Workload, base: int, seconds: float) -> dict[str, float]:
    """Return name -> the approximate number of devices at which that cost alone fills a step of `seconds`, if groups
    grow with the devices; inf if it costs nothing."""
    answers = setting.groups * workload.size / base  # a device
    per = {"driver": 2 * answers * hardware.driver, "store": answers * hardware.store * hardware.kept}
    found = {name: seconds / x if x else math.inf for name, x in per.items()}
    low, high = 0, 1 << 40  # numbers of replicas that weights reach in time, and do not reach
    while high - low > 1:
        n = (low + high) // 2
        low, high = (n, high) if hardware.broadcast(n) < seconds else (low, n)
    found["weights"] = float(low * hardware.replica) if high < 1 << 40 else math.inf
    return found
