"""A pretrained model beside transformers and TRL: sampling, SFT, DPO and GRPO steps, in alternating blocks.

    python benchmarks/pretrained.py DIR                 every case; DIR: of a model, as transformers saves it
    python benchmarks/pretrained.py DIR --only sample   or train, lora, dpo, grpo
    python benchmarks/pretrained.py 0.4M 15M 135M       sizes of models at random, for the picture
    python benchmarks/pretrained.py DIR --quick         one pair of each
    python benchmarks/pretrained.py DIR --before PATH   beside ours of another checkout, in the place of theirs

Each side of a case is a process of its own; they take turns, and the first block of each does not count. A ratio is
theirs over ours, seconds for the same work, of neighbouring blocks: above 1, ours is faster. Sampling and SFT are
beside transformers (`generate`; a padded step), DPO and GRPO beside TRL, where `benchmarks/.peers` has it (`make
peers`); all is measured there if it exists, else with this Python. Peak memory is that of a side's process, its imports
and the loading of the model included. Writes benchmarks/results/pretrained/MODEL.json. Left out: GPUs, learning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
sys.path.insert(0, str(HERE))

from common import RESULTS, machine, shown, table  # noqa: E402
from peers import run as peers  # noqa: E402

ROWS = 16  # of a training step
SAMPLE: dict[str, Any] = {"what": "sample", "unit": "tokens", "groups": 8, "n": 8, "length": 64, "batch": 64,
                          "peer": "generate", "kind": ["sample"]}  # fmt: skip
SFT: dict[str, Any] = {"what": "sft", "unit": "samples", "rows": ROWS, "pieces": 2, "kind": ["train"]}
DPO: dict[str, Any] = {"what": "dpo", "unit": "samples", "rows": ROWS, "pieces": 4, "kind": ["dpo"], "trl": True}
GRPO: dict[str, Any] = {"what": "grpo", "unit": "samples", "prompts": 8, "n": 8, "new": 16, "updates": 1,
                        "kind": ["grpo"], "trl": True}  # fmt: skip
BF16: dict[str, Any] = {"dtype": "bfloat16"}
CASES: dict[str, dict[str, Any]] = {
    "sample": SAMPLE,
    "sample, bfloat16": {**SAMPLE, **BF16, "engine": BF16},
    "sft": SFT,
    "sft, bfloat16": {**SFT, **BF16},
    "sft, lora": {**SFT, "lora": True, "kind": ["train", "lora"]},
    "sft, lora, bfloat16": {**SFT, **BF16, "lora": True, "kind": ["train", "lora"]},
    "dpo": DPO,
    "dpo, lora": {**DPO, "lora": True, "kind": ["dpo", "lora"]},
    "grpo": GRPO,
    "grpo, lora": {**GRPO, "lora": True, "kind": ["grpo", "lora"]},
}
HEAD = ("case", "unit", "ours, a second of processor", "theirs", "ratio, processor: min / median / max", "ratio, wall",
        "peak GB, ours", "theirs", "load")  # fmt: skip


def row(found: dict[str, Any]) -> tuple[str, ...]:
    """Of the table."""
    unit = found["unit"]
    rates = (f"{found[side][f'{unit}_per_cpu_s']['median']:,.2f}" for side in ("ours", "theirs"))
    memory = (f"{found[side]['peak_mib'] / 1024:.2f}" for side in ("ours", "theirs"))
    ratios = (shown(found[f"ratio_{clock}"]) for clock in ("cpu", "wall"))
    return found["case"], unit, *rates, *ratios, *memory, f"{found['machine']['load']:.1f}"


def prepare(python: str, source: str, folder: Path) -> None:
    """The directory that both sides read."""
    code = "import pathlib, sys, large; large.prepare(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))"
    given = source if not Path(source).is_dir() else str(Path(source).resolve())
    command = [python, "-c", code, str(folder), given, str(ROWS)]
    done = subprocess.run(command, cwd=HERE / "peers", capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source} could not be made ready:\n{done.stderr[-3000:]}")


def has_bf16() -> bool:
    """Whether this CPU multiplies in bfloat16; one that does not takes several times as long as in float32."""
    info = Path("/proc/cpuinfo")
    return not info.is_file() or any(word in info.read_text() for word in ("avx512_bf16", "amx_bf16", "bf16mm"))


def has_trl(python: str) -> bool:
    return subprocess.run([python, "-c", "import trl"], capture_output=True).returncode == 0


def measure(case: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """The table's numbers of one case."""
    load = os.getloadavg()[0]
    found = peers.measure(case, given.pairs, 0 if given.quick else 1)
    about = machine(given.threads) | {"load": max(load, os.getloadavg()[0])}
    return {**found, "unit": case["unit"], "machine": about}


def save(file: Path, found: dict[str, Any]) -> None:
    """Put a case into the file of its model."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[found["case"]] = found
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({name: kept[name] for name in CASES if name in kept}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="DIR|SIZE", help="a model's directory, or 0.4M, 15M, 135M")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of blocks that count (default 3)")
    parser.add_argument("--only", choices=("sample", "train", "lora", "dpo", "grpo"), help="cases of this kind")
    parser.add_argument("--case", help="this case alone, by its name")
    parser.add_argument("--before", help="a checkout of ours, before a change, in the place of theirs; writes nothing")
    parser.add_argument("--threads", type=int, default=1, help="of each side (default 1)")
    parser.add_argument("--quick", action="store_true", help="one pair of each case, for a look: nothing is warm")
    parser.add_argument("--out", type=Path, default=RESULTS / "pretrained", help="the folder of the JSON")
    given = parser.parse_args()
    given.pairs = 1 if given.quick else given.pairs
    python = str(peers.PYTHON if peers.PYTHON.exists() else sys.executable)
    trl = has_trl(python)
    for source in given.models:
        if not Path(source).is_dir() and source not in ("0.4M", "15M", "135M"):
            parser.error(f"{source} is no directory, and no size: expected 0.4M, 15M or 135M")
        with tempfile.TemporaryDirectory() as root:
            folder, name = Path(root, "model"), Path(source).resolve().name if Path(source).is_dir() else source
            prepare(python, source, folder)
            print(f"\n{name}", *table(HEAD), sep="\n", flush=True)
            for title, case in CASES.items():
                if (given.only and given.only not in case["kind"]) or given.case not in (None, title):
                    continue
                if case.get("dtype") and not given.case and not has_bf16():
                    print(f"{title}: not measured: this CPU has no bfloat16 (--case measures it nevertheless)")
                    continue
                if case.get("trl") and not (trl or given.before):
                    print(f"{title}: not measured: no TRL here (make peers)")
                    continue
                made = {"name": title, "module": "large", "block": 1, "folder": str(folder), "threads": given.threads,
                        "python": python, "allocator": {}, "before": given.before}  # fmt: skip
                found = measure({**made, **case}, given)
                print(table(row(found))[0], flush=True)
                if not given.before:
                    save(given.out / f"{name}.json", found)


if __name__ == "__main__":
    main()
