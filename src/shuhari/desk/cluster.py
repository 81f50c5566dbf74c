"""What each node of a Ray cluster has, and how it differs from this machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from shuhari.data import EMPTY
from shuhari.desk.doctor import find_memory, find_version
from shuhari.distributed.ray_world import World
from shuhari.store.files import count_cores

ALIKE = ("shuhari", "python", "torch", "ray", "numpy", "transformers")  # versions that a run's nodes should share
TIMEOUT = 60.0  # seconds that a node has to answer


def describe_here() -> dict[str, Any]:
    """Describe this process's machine: cores, memory, GPUs, versions."""
    import torch

    from shuhari import __version__

    packages = {name: find_version(name) for name in ("torch", "ray", "numpy", "transformers")}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cores": count_cores(), "memory_gb": find_memory(), "gpus": gpus,
            "versions": {"shuhari": __version__, "python": platform.python_version(), **packages}}  # fmt: skip


def report_cluster(address: str = "") -> dict[str, Any]:
    """Return {"here", "nodes": [...], "differ": [...]} of the cluster at an address; "" starts a Ray for the purpose. A
    node that does not answer has `error`. Raises RecipeError if there is no Ray."""
    world = World(address)
    world.open()
    try:
        here, nodes = describe_here(), [_ask(world.ray, node) for node in world.ray.nodes() if node["Alive"]]
    finally:
        world.close()
    return {
        "here": here,
        "nodes": nodes,
        "differ": [
            line
            for node in nodes
            for line in compare(here, node)
        ],
    }


def _ask(ray: Any, node: Mapping[str, Any]) -> dict[str, Any]:
    has = {name: amount for name, amount in node["Resources"].items() if name in ("CPU", "GPU", "memory")}
    known = {"node": node["NodeManagerHostname"], "id": node["NodeID"][:8],
             "offers": {"cpus": has.get("CPU", 0.0), "gpus": has.get("GPU", 0.0),
                        "memory_gb": round(has.get("memory", 0.0) / 1e9, 1)}}  # fmt: skip
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    ref = ray.remote(describe_here).options(num_cpus=0, scheduling_strategy=place, max_retries=0).remote()
    try:
        return {**known, **ray.get(ref, timeout=TIMEOUT)}
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {**known, "error": f"{type(error).__name__}: {(lines or [''])[-1][:300]}"}


def compare(here: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
    """Return sentences on how a node differs from here in versions that a run's nodes should share."""
    if "error" in node:
        return [f"{node['node']}: it did not answer ({node['error']})"]
    theirs, ours = node.get("versions", EMPTY), here["versions"]
    return [
        f"{node['node']}: {name} {theirs.get(name) or 'is not there'}, here {ours.get(name) or 'it is not there'}"
        for name in ALIKE
        if theirs.get(name) != ours.get(name)
    ]
