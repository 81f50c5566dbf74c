"""The whole path of a pretrained model, as a user goes it: GRPO with adapters on sums, killed in its second step and
resumed, exported, served, and asked by the client `openai`; transformers says what the answer has to be.

SHUHARI_PRETRAINED names the model: a directory, a .gguf file, or `download`, which has `.ci/pretrained.py` fetch one.
It takes minutes. Each part's seconds are printed (`pytest -s`). Left out: whether anything is learnt.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shuhari.store import Run, StoreError

NAMED, ROOT = "SHUHARI_PRETRAINED", Path(__file__).parents[1]
WANTED = os.environ.get(NAMED, "")
SMALL = {"steps": 2, "threads": 1, "rollout.n": 4, "rollout.sampling.max_new": 8, "buffer.size": 2, "evaluate.every": 0,
         "evaluate.n": 2}  # fmt: skip
SECONDS = 240.0  # that a process may take
pytestmark = [
    pytest.mark.skipif(not WANTED, reason=f"{NAMED} names no model: a directory, a .gguf file, or `download`"),
    pytest.mark.timeout(600),
]


@contextmanager
def timed(part: str) -> Iterator[None]:
    at = time.monotonic()
    yield
    print(f"pretrained: {part} ({time.monotonic() - at:.0f} s)", flush=True)


def model(folder: Path) -> Path:
    if WANTED != "download":
        return Path(WANTED).resolve()
    command = [sys.executable, str(ROOT / ".ci" / "pretrained.py"), "--fetch", str(folder / "fetched")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.endswith(".gguf\n"):
        pytest.skip(done.stdout.strip() or done.stderr[-300:])
    return Path(done.stdout.splitlines()[-1])


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "shuhari", *map(str, words)]


def call(*words: str | Path) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(folder: Path, place: Path) -> tuple[str | Path, ...]:
    """The words of the command that trains."""
    sums = [{"prompt": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3)} for a in range(20)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    settings = {"models.policy.path": place, "task.name": f"file/{folder / 'sums.jsonl'}", **SMALL}
    sets = [w for k, v in settings.items() for w in ("--set", f"{k}={v}")]
    return "train", "pretrained/grpo", "--run", folder / "run", *sets


def steps(run: Path) -> int:
    """That are stored; -1 where nothing is there yet."""
    try:
        return Run(run).step if (run / "run.sqlite").exists() else -1
    except StoreError:  # it is being made
        return -1


def kill_in_second_step(folder: Path, words: tuple[str | Path, ...]) -> None:
    run, end = folder / "run", time.monotonic() + SECONDS
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command(*words), stdout=log, stderr=subprocess.STDOUT)
        try:
            while steps(run) < 1:
                assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
            time.sleep(0.5)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert Run(run).step == 1


def ask(place: Path, question: str) -> tuple[str, str]:
    """The greedy answer of a server of this model, and why it ended."""
    import openai

    with subprocess.Popen(command("serve", place, "--port", "0"), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+/v1", server.stdout.readline())
            assert found is not None, "the server did not start"
            with openai.OpenAI(base_url=found.group(), api_key="none") as client:
                name = client.models.list().data[0].id
                told = client.chat.completions.create(
                    model=name, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=8
                )
        finally:
            server.terminate()
    return str(told.choices[0].message.content), str(told.choices[0].finish_reason)


def say(place: Path, question: str) -> str:
    """The same answer by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, lm = AutoTokenizer.from_pretrained(place), AutoModelForCausalLM.from_pretrained(place)
    turns = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    said = lm.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True))


def test_from_a_file_of_weights_to_a_client(tmp_path: Path) -> None:
    with timed("fetched"):
        place = model(tmp_path)
    words = train(tmp_path, place)
    with timed("read, one step of GRPO, killed in the second"):
        kill_in_second_step(tmp_path, words)
    with timed("resumed to its end"):
        call(*words)
    run = Run(tmp_path / "run")
    assert (run.step, run.status) == (2, "complete")
    with timed("exported"):
        call("export", tmp_path / "run", tmp_path / "out")
    question = "What is 2 + 3?"
    with timed("served, and asked by openai"):
        told, why = ask(tmp_path / "out", question)
    assert why in ("stop", "length")
    with timed("transformers says the same"):
        assert told.strip() == say(tmp_path / "out", question).strip() != ""
