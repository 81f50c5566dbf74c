"""Run lm-eval's harness against `shuhari serve`: a task of likelihoods and one of answers, both local files.

    python .ci/harness.py [--env DIR]

It makes an environment with `lm-eval[api]` (DIR is kept for the next time, else it is thrown away), serves a small
model with random weights and holds what the harness was told to what transformers says of the same model: the
log-probability of every choice, and every greedy answer. Installing takes minutes, and the rest half of one, so it
is no part of `.ci/run`. torch and transformers are seen through a `.pth` file and not installed again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "answers": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["7"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match}]
""",
}
ROWS = [{"question": f"{a}+{b}=", "choices": [str(a + b), str(a + b + 1), f"{a}{b}"], "label": 0}
        for a, b in ((12, 30), (5, 5), (41, 17), (8, 99), (23, 32), (60, 7))]  # fmt: skip


def install(home: Path) -> Path:
    """The Python of an environment with the harness."""
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        here = sysconfig.get_paths()
        site = next((home / "lib").glob("python*")) / "site-packages"
        (site / "outer.pth").write_text("\n".join(dict.fromkeys([here["purelib"], here["platlib"]])))
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "lm-eval[api]"], check=True, stderr=subprocess.DEVNULL)
    return python


def write_files(folder: Path) -> None:
    """A model, the data, and the tasks."""
    import torch

    import shuhari

    torch.manual_seed(0)
    made = shuhari.session({"use": "causal", "hidden": 32, "layers": 2, "heads": 2, "context": 128})
    model: Any = made.models["policy"]
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    model.save(folder / "model")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    head = f"dataset_path: json\ndataset_kwargs: {{data_files: {folder / 'rows.jsonl'}}}\ntest_split: train\n"
    (folder / "tasks").mkdir()
    for name, text in TASKS.items():
        (folder / "tasks" / f"{name}.yaml").write_text(f"task: local_{name}\n{head}{text}target_delimiter: ''\n")


def evaluate(python: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the harness was told, by task."""
    command = [sys.executable, "-m", "shuhari", "serve", str(folder / "model"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+/v1", server.stdout.readline())
            assert found is not None, "the server did not start"
            settings = {"model": "model", "base_url": f"{found.group()}/completions", "tokenizer": folder / "model",
                        "tokenizer_backend": "huggingface", "num_concurrent": 4, "max_length": 128}  # fmt: skip
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
            words = ["-m", "lm_eval", "--model", "local-completions", "--model_args",
                     ",".join(f"{k}={v}" for k, v in settings.items()), "--tasks", "local_choices,local_answers",
                     "--include_path", folder / "tasks", "--output_path", folder / "out", "--log_samples"]  # fmt: skip
            done = subprocess.run([python, *words], env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            print(done.stdout[-1500:])
        finally:
            server.terminate()
    return {
        name: [json.loads(line) for p in (folder / "out").rglob(f"samples_local_{name}*") for line in p.open()]
        for name in TASKS
    }


def compare(folder: Path, told: dict[str, list[dict[str, Any]]]) -> float:
    """The largest difference of a log-probability; AssertionError where an answer differs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    lm = AutoModelForCausalLM.from_pretrained(folder / "model").eval()

    @torch.no_grad()
    def table(ids: list[int]) -> torch.Tensor:
        logits = lm(torch.tensor([ids])).logits[0].double()
        logits[:, tokenizer.pad_token_id] = -torch.inf  # which our models never say
        return logits.log_softmax(-1)

    worst, assert_rows = 0.0, sorted(told["choices"], key=lambda x: x["doc_id"])
    assert len(assert_rows) == len(told["answers"]) == len(ROWS)
    for row, sample in zip(ROWS, assert_rows, strict=True):
        context = tokenizer.encode(row["question"], add_special_tokens=False)
        for choice, (found, _) in zip(row["choices"], sample["filtered_resps"], strict=True):
            ids = tokenizer.encode(choice, add_special_tokens=False)
            p = table([*context, *ids])[len(context) - 1 : -1]
            wanted = float(p[torch.arange(len(ids)), ids].sum())
            worst = max(worst, abs(wanted - float(found)))
    for row, sample in zip(ROWS, sorted(told["answers"], key=lambda x: x["doc_id"]), strict=True):
        context, said = tokenizer.encode(row["question"], add_special_tokens=False), []
        while len(said) < 12 and tokenizer.eos_token_id not in said:
            said.append(int(table([*context, *said])[-1].argmax()))
        text = tokenizer.decode([i for i in said if i != tokenizer.eos_token_id]).partition("7")[0]
        assert sample["filtered_resps"][0] == text, (sample["filtered_resps"], text)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, help="the environment, made where it is not there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, at = Path(name), time.monotonic()
        python = install((given.env or folder / "env").absolute())
        installed = time.monotonic() - at
        write_files(folder)
        worst = compare(folder, evaluate(python, folder))
    took = f"installed in {installed:.0f} s, ran in {time.monotonic() - at - installed:.0f} s"
    print(f"harness: {len(ROWS)} rows of {len(TASKS)} tasks as transformers has them; log-probabilities differ by at "
          f"most {worst:.1e} ({took})")  # fmt: skip
    assert worst < 1e-3


if __name__ == "__main__":
    main()
