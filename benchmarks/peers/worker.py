"""One side of one case, in a process of its own: `worker.py ours|theirs '<case as JSON>'`. See `gate` for the rest."""

from __future__ import annotations

import importlib
import json
import sys
import warnings

from gate import Gate


def main() -> None:
    side, case = sys.argv[1], json.loads(sys.argv[2])
    gate = Gate(case["block"])
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(case["threads"])
    getattr(importlib.import_module(case["module"]), side)(case, gate)


if __name__ == "__main__":
    main()
