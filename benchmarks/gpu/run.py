"""The library on one GPU, in one go: right or not, how fast, and whether it learns. It wants no network.

    python benchmarks/gpu/run.py                          nine minutes on a GPU; out/gpu.json here, and a picture
    python benchmarks/gpu/run.py --seconds 300 --out DIR  less, elsewhere
    python benchmarks/gpu/run.py --cpu --tiny             all of it with tiny models on a CPU, to see that it works

Parts, in this order, each in a process of its own that ends when its time is over: facts of the machine
(`facts.py`), correctness (`right.py`), rates (`rates.py`), GRPO for up to five minutes (`learn.py`), a model in
shards (`shards.py`). What a part has found is written after each of its entries, and after each part into
`gpu.json`; an entry that fails is there with its traceback, and the next one follows. `--parts` names some of them.

Packages that are missing are installed from `wheels/` (`wheels.py` fills it) into `site/`, beside this file.
Weights are those of `weights/` (`weights.py`), or `--weights`; where they are not whole, random ones of the same
shape."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = {"facts": 60.0, "right": 130.0, "rates": 170.0, "learn": 320.0, "shards": 90.0}  # seconds, at most
LATER = {"facts": 0.0, "right": 100.0, "rates": 110.0, "learn": 45.0, "shards": 0.0}  # seconds, kept for what follows
TINY = 400.0
NEEDED = ("gymnasium", "pydantic", "tomli_w", "gguf")
for place in (HERE.parents[1] / "src", HERE.parent, HERE):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
sys.path.append(str(HERE / "site"))  # behind: what the machine has comes first

from notes import Notes  # noqa: E402


def install() -> str:
    """Install what is missing from the wheels; in words what was done."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    wheels = sorted((HERE / "wheels").glob("*.whl"))
    if not missing or not wheels:
        return f"missing: {', '.join(missing) or 'nothing'}; wheels: {len(wheels)}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir",
               "--upgrade", "--target", str(HERE / "site"), *map(str, wheels)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    importlib.invalidate_caches()
    return f"missing: {', '.join(missing)}; {len(wheels)} wheels, pip ended with {done.returncode} {done.stderr[-500:]}"


def find_weights(given: Path | None) -> tuple[Path | None, str]:
    """The weights, or why there are none."""
    import weights

    if given is not None and given.exists():
        return given, ""
    try:
        return weights.find() if given is None else (None, f"{given} is not there")
    except ValueError as error:
        return None, str(error)


def run_part(name: str, notes: Notes) -> None:
    """A part, in this process; what ends it altogether is noted."""
    try:
        importlib.import_module(name).main(notes)
    except Exception:  # noted, so that the others go on
        notes.put("failed", traceback.format_exc())


def child(args: argparse.Namespace, name: str, most: float, whole: Path | None) -> dict[str, Any]:
    """A part, in a process of its own: what it noted."""
    file = args.out / f"gpu-{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "run.py"), "--part", name, "--seconds", f"{most:.1f}", "--out", str(args.out)]
    command += [word for word in ("--cpu", "--tiny") if getattr(args, word[2:])]
    command += [] if whole is None else ["--weights", str(whole)]
    # cuBLAS gives the same bits only with a work space that is set beforehand
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, env.get("PYTHONPATH", "")]))
    began, ended = time.monotonic(), "0"
    with (args.out / f"gpu-{name}.log").open("w") as log:
        try:
            # it looks at the clock itself; one that hangs is ended
            done = subprocess.run(command, stdout=log, stderr=log, check=False, env=env, timeout=most + 15)
            ended = str(done.returncode)
        except subprocess.TimeoutExpired:
            ended = f"ended after {most + 15:.0f} seconds"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    log_file = args.out / f"gpu-{name}.log"
    tail = log_file.read_text(errors="replace")[-3000:]
    log_file.unlink()
    file.unlink(missing_ok=True)
    return {"took_s": round(time.monotonic() - began, 1), "ended": ended, **found, **({"log": tail} if tail else {})}


def brief(found: Any, depth: int = 0) -> Any:
    """Numbers and short texts, to be printed."""
    if isinstance(found, dict):
        left_out = ("log", "settings", "keys", "curve", "top", "versions", "nvidia_smi")
        return {k: brief(v, depth + 1) for k, v in found.items() if k not in left_out}
    if isinstance(found, list):
        return [brief(x, depth + 1) for x in found[:4]]
    if isinstance(found, float):
        return float(f"{found:.4g}")
    return found if not isinstance(found, str) else found[-160:]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=None, help="of all parts, default 540")
    parser.add_argument("--cpu", action="store_true", help="on a CPU, also where there is a GPU")
    parser.add_argument("--tiny", action="store_true", help="tiny models")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--weights", type=Path, default=None, help="a .gguf file or a directory of transformers")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.parts.split(",")) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    return args


def main() -> None:
    args = parse()
    if args.part:
        import torch

        device = "cpu" if args.cpu or not torch.cuda.is_available() else "cuda"
        file = args.out / f"gpu-{args.part}.json"
        run_part(args.part, Notes(file, args.seconds, device, args.tiny, args.weights))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + (args.seconds or 540.0)
    whole, why = None, "none, as --tiny is given and --weights is not"
    if args.weights is not None or not args.tiny:
        whole, why = find_weights(args.weights)
    found: dict[str, Any] = {"installed": install(), "weights": why or str(whole)}
    for name in args.parts.split(","):
        most = min(TINY if args.tiny else PARTS[name], end - time.monotonic() - (0 if args.tiny else LATER[name]))
        print(f"{name}: up to {most:.0f} s", flush=True)
        found[name] = child(args, name, most, whole) if most > 5 else {"left out": f"{most:.0f} seconds were left"}
        (args.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(brief(found[name])), flush=True)


if __name__ == "__main__":
    main()
