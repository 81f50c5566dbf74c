"""How long pages of the board take, of a store with many runs, one of them with a million kept rollouts.

    python benchmarks/board.py                             10^6 groups, 1,000 runs; writes results/board.json
    python benchmarks/board.py --groups 20000 --runs 100   a look

A page counts from the address to its last table, in Chromium where that is installed with playwright, the first time
and again; an address of the server from the question to its answer. Runs are synthetic (`finding` says how): the many
have 200 steps of eight metrics, and three groups kept.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import RESULTS, machine
from finding import fill, make_groups

from shuhari.store import Run, Store

NAMES = ("reward/mean", "evaluate/greedy", "rollout/length", "policy/entropy", "policy/approx_kl",
         "policy/clip_fraction", "policy/grad_norm", "spent/tokens")  # fmt: skip
RECIPE = 'name = "synthetic/{}"\nsteps = 200\nseed = {}\n[task]\nname = "synthetic"\n'
PAGES = {
    "runs": "runs",
    "run": "run?run=big",
    "rollouts, worst first": "rollouts?run=big",
    "a group": "rollouts?run=big&group={worst}",
    "curriculum": "curriculum?run=big",
    "replay": "replay?run=big",
    "compare": "compare?arm=many/0&arm=many/1",
    "claims": "claims",
    "beds": "beds",
}
ADDRESSES = {
    "list of runs": "runs?limit=50",
    "the worst of all rollouts": "rollouts?run=big&order=worst&limit=1",
    "page 1,000 of 50 by score": "rollouts?run=big&order=score&offset=49950&limit=50",
    "that group, with its tokens": "group?run=big&id={worst}",
    "facts of a run": "run?run=big",
}


def fill_many(root: Path, runs: int) -> None:
    """`runs` small ones: a few are written, the others are copies with names and numbers of their own."""
    rng, words = random.Random(1), [f"word{i}" for i in range(2000)]
    first = root / "many" / "0"
    with Store.open(first) as store:
        store.write_text("recipe.toml", RECIPE.format("many", 0))
        for step in range(1, 201):
            kept = make_groups(rng, 3, words) if step == 200 else []
            metrics = {name: rng.random() + step / 100 for name in NAMES}
            store.commit(step, metrics=metrics, rollouts=kept)
        store.set(complete=True, total=200)
    for i in range(1, runs):
        shutil.copytree(first, root / "many" / str(i))
        (root / "many" / str(i) / "recipe.toml").write_text(RECIPE.format(f"many{i % 7}", i))


def serve(root: Path) -> tuple[subprocess.Popen[str], str, float]:
    """(process, address with the token, seconds until it answers)."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "shuhari", "board", "--root", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    return process, found[0], time.perf_counter() - began


def time_addresses(base: str, values: dict[str, Any], rounds: int) -> Iterator[tuple[str, list[float]]]:
    for name, address in ADDRESSES.items():
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            with urllib.request.urlopen(f"{base}/api/{address.format(**values)}") as reply:
                reply.read()
            times.append(time.perf_counter() - start)
        yield f"/api: {name}", times


def time_pages(base: str, token: str, values: dict[str, Any], rounds: int) -> Iterator[tuple[str, list[float]]]:
    from playwright.sync_api import sync_playwright

    browser_path = next(p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{base}/#token={token}")
        for name, where in PAGES.items():
            times = []
            for _ in range(rounds):
                page.goto("about:blank")
                start = time.perf_counter()
                page.goto(f"{base}/#/{where.format(**values)}")
                page.wait_for_selector("body[data-ready]:not([data-ready=''])", timeout=120_000)
                times.append(time.perf_counter() - start)
            yield name, times
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=None, help="keep the store here, or ask one that is there")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds between start and the first question")
    parser.add_argument("--out", type=Path, default=RESULTS / "board.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = args.root or Path(folder) / "runs"
        if not (root / "many").exists():
            fill_many(root, args.runs - 1)
        if not (root / "big").exists():
            fill(root / "big", args.groups, 1000)
            (root / "big" / "recipe.toml").write_text(RECIPE.format("big", 0))
        values = {"worst": Run(root / "big").find_groups("worst", limit=1)[0]["id"]}
        process, address, started = serve(root)
        base, _, token = address.partition("/#token=")
        time.sleep(args.wait)
        found: dict[str, dict[str, float]] = {}
        try:
            for name, times in (
                *time_addresses(base, values, args.rounds),
                *time_pages(base, token, values, args.rounds),
            ):
                found[name] = {"first": times[0], "then": statistics.median(times[1:])}
                print(f"{name}: {times[0]:.2f} s first, {found[name]['then']:.2f} s then", flush=True)
        finally:
            process.terminate()
        facts = {"groups": args.groups, "runs": args.runs, "start_s": started, "waited_s": args.wait}
        args.out.write_text(json.dumps({"machine": machine(1), **facts, "seconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
