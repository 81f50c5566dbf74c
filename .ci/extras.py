"""Install the wheel, bare and with each extra, in an environment of its own, and use there what the extra is for.

    python .ci/extras.py [--wheel FILE] [--jobs N] [EXTRA ...]

Left out: torch, and all else that the environment of this Python has already, is seen through a `.pth` file and not
installed again, so that the check takes minutes and not an hour; only what is missing there comes from the registry.
Whether every version that an extra allows will do is not tested either, nor `ogbench`, which is large. Where no
registry answers, an extra whose packages are not here is named and not tested; any other failure ends with 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 150.0  # seconds, after which no further extra is begun
UNREACHABLE = ("NewConnectionError", "Temporary failure in name resolution", "No matching distribution", "Max retries",
               "ConnectTimeout", "ProxyError")  # fmt: skip
POLE = """
import shuhari
small = {"steps": 1, "buffer.size": 32, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 2}
def train(**more):
    return shuhari.train("baselines/ppo_cartpole", "run", rehearsal=False, **small, **more)
"""
BARE = "none"  # stands for the wheel without an extra
USES = {  # extra -> a program
    BARE: """
import json, pathlib, shuhari, subprocess, sys
def call(*words):
    command = [str(pathlib.Path(sys.executable).with_name("shuhari")), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
root = pathlib.Path(shuhari.__file__).parent
wanted = {p.relative_to(root / "recipes").with_suffix("").as_posix() for p in (root / "recipes").rglob("*.toml")}
wanted |= {p.parent.relative_to(root / "methods").as_posix() for p in (root / "methods").rglob("recipe.toml")}
assert {m["name"] for m in json.loads(call("methods", "--json"))} == wanted
call("train", "baselines/ppo_cartpole", "--set", "steps=2")
(run,) = pathlib.Path("runs").iterdir()
assert {"recipe.toml", "run.sqlite", "summary.json"} <= {p.name for p in run.iterdir()}
""",
    "lm": """
import math_verify, peft, pyarrow, reasoning_gym, shuhari
small = {"models.policy": {"use": "causal", "hidden": 16, "layers": 1, "heads": 1, "lora": {"rank": 2}}}
small |= {"task": {"name": "reasoning-gym/chain_sum"}, "buffer.size": 2, "rollout.n": 2, "evaluate.n": 2}
shuhari.train("baselines/grpo", "run", **small, **{"remove": ["stage.warm-up"], "stage.rl.steps": 1})
""",
    "control": """
import imageio, minari, minigrid, mujoco, shuhari
small = {"steps": 1, "buffer.size": 32, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 1}
shuhari.train("baselines/ppo_double_pendulum", "run", rehearsal=False, **small)
""",
    "box2d": """
import Box2D, shuhari
small = {"steps": 1, "buffer.size": 64, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 1}
shuhari.train("reproduce/ppo_lunar_lander", "run", rehearsal=False, **small)
""",
    "minatar": """
import minatar, shuhari
small = {"steps": 1, "buffer.size": 64, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 1}
shuhari.train("reproduce/ppo_minatar", "run", rehearsal=False, **small)
small = {"steps": 2, "buffer.size": 4, "buffer.warmup": 8, "evaluate.n": 1}
shuhari.train("reproduce/qr_dqn_minatar", "run2", rehearsal=False, **small)
""",
    "atari": """
import ale_py, shuhari
small = {"steps": 1, "buffer.size": 16, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 0}
shuhari.train("reproduce/ppo_atari", "run", rehearsal=False, **small)
""",
    "ray": """
from shuhari.desk.cluster import report_cluster
found = report_cluster()
assert len(found["nodes"]) == 1 and not found["differ"], found
""",
    "studies": POLE + """
import optuna, sklearn
import shuhari.methods.curriculum.mbtl.mbtl
train()
""",
    "board": """
import json, re, subprocess, sys, urllib.request
from pathlib import Path
command = [str(Path(sys.executable).with_name("shuhari")), "board", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    base = re.search(r"http://[^/]+/", server.stdout.readline()).group()
    for name in ("", "static/plotly.min.js", "api/runs", "api/claims"):
        with urllib.request.urlopen(base + name) as reply:
            assert reply.status == 200 and reply.read()
    server.terminate()
    assert server.wait() == 0
""",
    "serve": """
import json, re, subprocess, sys, time, urllib.request
from pathlib import Path
import shuhari
made = shuhari.session({"use": "causal", "hidden": 16, "layers": 1, "heads": 1})
made.models["policy"].save("model")
command = [str(Path(sys.executable).with_name("shuhari")), "serve", "model", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    base = re.search(r"http://\\S+/v1", server.stdout.readline()).group()
    body = json.dumps({"model": "model", "prompt": "2+2=", "max_tokens": 4, "seed": 1}).encode()
    asked = urllib.request.Request(base + "/completions", body, {"Content-Type": "application/json"})
    assert json.load(urllib.request.urlopen(asked))["usage"]["completion_tokens"]
    server.terminate()
    assert server.wait() == 0
""",
    "onnx": POLE + """
told = shuhari.export_onnx(train().path, "policy.onnx")
assert told["checked"] == "onnxruntime says the same", told
""",
    "wandb": POLE + """
import os
os.environ["WANDB_MODE"] = "offline"
tracker = shuhari.WandB("check")
train(observe=tracker)
assert not tracker.failed, tracker.failed
assert any(name.startswith("offline-run") for name in os.listdir("wandb"))
""",
    "trackio": POLE + """
import os
os.environ["TRACKIO_DIR"] = os.path.abspath("kept")
tracker = shuhari.Trackio("check")
train(observe=tracker)
assert not tracker.failed, tracker.failed
assert os.path.exists("kept/check.db"), os.listdir("kept")
""",
    "tensorboard": POLE + """
train(observe=shuhari.TensorBoard("logs"))
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("logs").Reload()
assert read.Tags()["scalars"], read.Tags()
""",
}


def run(*command: str | Path, cwd: Path) -> tuple[int, str]:
    """(exit code, both streams) of a command, away from this checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    words = [str(c) for c in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def build(folder: Path) -> Path:
    """The wheel of this checkout."""
    code, told = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    if code:
        sys.exit(f"the wheel cannot be built:\n{told}")
    return next(folder.glob("*.whl"))


def check(extra: str, wheel: Path, home: Path) -> str:
    """"" where the extra installs and works; else what went wrong, with `-` in front where it could not be tested."""
    python = home / "env" / "bin" / "python"
    (home / "empty").mkdir(parents=True)
    code, told = run(sys.executable, "-m", "venv", "--without-pip", home / "env", cwd=home)
    if code:
        return told
    _, site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    here = sysconfig.get_paths()
    Path(site.strip(), "outer.pth").write_text("\n".join(dict.fromkeys([here["purelib"], here["platlib"]])))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=home)
    named = "shuhari" if extra == BARE else f"shuhari[{extra}]"
    code, told = run(*pip, "--retries", "1", "--timeout", "15", f"{named} @ {wheel.as_uri()}", cwd=home)
    if code:
        return ("- " if any(word in told for word in UNREACHABLE) else "") + told
    (home / "empty" / "use.py").write_text(f"if __name__ == '__main__':\n{_indent(USES[extra])}")
    code, told = run(python, "use.py", cwd=home / "empty")
    if code:
        return told
    code, told = run(python, "-c", "import shuhari; print(shuhari.__file__)", cwd=home / "empty")
    return "" if str(home) in told else f"another shuhari was imported: {told}"


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(USES)} (default: all)")
    parser.add_argument("--wheel", type=Path, help="a wheel that is built already")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once")
    given = parser.parse_args()
    if unknown := set(given.extras) - USES.keys():
        parser.error(f"no extra {min(unknown)!r}: expected some of {', '.join(USES)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as jobs:
        wheel = given.wheel.resolve() if given.wheel else build(Path(folder))

        def look(extra: str) -> bool:
            """Whether it fails; what became of it is printed."""
            at = time.monotonic()
            if at - began > LIMIT:
                print(f"{extra}: not tested (over {LIMIT:g} s)")
                return False
            wrong = check(extra, wheel, Path(folder) / extra)
            last = (wrong.strip().splitlines() or [""])[-1]
            state = "works" if not wrong else f"not tested: {last}" if wrong.startswith("- ") else f"FAILED\n{wrong}"
            print(f"{extra}: {state} ({time.monotonic() - at:.0f} s)", flush=True)
            return bool(wrong) and not wrong.startswith("- ")

        failed = any(list(jobs.map(look, given.extras or USES)))
    sys.exit(failed)


if __name__ == "__main__":
    main()
