"""What the recipes `pretrained/sft`, `dpo`, `reward_model` and `opd` do for a pretrained chat model on real rows.

    python benchmarks/pretrained_recipes.py MODEL --data DIR              all four; what is done is not done again
    python benchmarks/pretrained_recipes.py MODEL --data DIR --only dpo

MODEL is a directory as transformers saves it. DIR has gsm8k_train.jsonl, gsm8k_test.jsonl (openai/grade-school-math)
and qa_feedback_dev.json (allenai/FineGrainedRLHF). SFT is on worked solutions, DPO and the reward model on pairs of
answers that people put in order (ties left out), distillation from the model into a copy of it without six of its
layers. Each trains adapters with the settings of its recipe for a few steps, held-out rows beside. Writes
benchmarks/results/pretrained/recipes.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from common import RESULTS, machine  # noqa: E402

OUT = RESULTS / "pretrained" / "recipes.json"
LONG = 1_000  # letters of an answer; longer pairs are left out
DROPPED = range(20, 26)  # layers that the student lacks
ASKED = (
    "Tom has 3 bags with 4 apples each and eats 5 apples. How many apples are left?",
    "When was the Eiffel Tower built?",
    "Name three colours.",
)
FIRST, SECOND = 1, 2  # of a preference; 0 is a tie


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file/{file}"


def write_solutions(data: Path, work: Path) -> str:
    """1,000 worked solutions to train on, 32 held out."""
    rows = []
    for split, n in (("train", 1000), ("test", 32)):
        with (data / f"gsm8k_{split}.jsonl").open() as file:
            found = [json.loads(line) for line in file][:n]
        rows += [{"prompt": r["question"], "completion": r["answer"], "split": split} for r in found]
    return write(work / "solutions.jsonl", rows)


def write_pairs(data: Path, work: Path) -> str:
    """Pairs of answers to 400 questions to train on, to 60 more held out."""
    found = json.loads((data / "qa_feedback_dev.json").read_text())
    random.Random(0).shuffle(found)
    rows = []
    for i, row in enumerate(found[:460]):
        answers = [row[f"prediction {k}"] for k in (1, 2, 3, 4)]
        order = [(a, b) for a in range(4) for b in range(a + 1, 4)]
        for (a, b), said in zip(order, row["preference"], strict=True):
            better, worse = (a, b) if said == FIRST else (b, a)
            if said in (FIRST, SECOND) and max(len(answers[a]), len(answers[b])) <= LONG:
                rows.append({"prompt": row["question"], "chosen": answers[better], "rejected": answers[worse],
                             "split": "train" if i < 400 else "test"})  # fmt: skip
    return write(work / "pairs.jsonl", rows)


def cut_student(model: str, work: Path) -> str:
    """A copy of the model without some layers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    to = work / "student"
    if not (to / "config.json").is_file():
        lm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        kept = [layer for i, layer in enumerate(lm.model.layers) if i not in DROPPED]
        for i, layer in enumerate(kept):
            layer.self_attn.layer_idx = i
        lm.model.layers = torch.nn.ModuleList(kept)
        lm.config.num_hidden_layers = len(kept)
        if getattr(lm.config, "layer_types", None):
            lm.config.layer_types = lm.config.layer_types[: len(kept)]
        lm.save_pretrained(to)
        AutoTokenizer.from_pretrained(model).save_pretrained(to)
    return str(to)


def make_cases(model: str, data: Path, work: Path) -> dict[str, Callable[[], tuple[str, dict[str, Any]]]]:
    """name -> (the model that is trained, its settings)."""

    def sft() -> tuple[str, dict[str, Any]]:
        return model, {"models.policy.path": model, "task.name": write_solutions(data, work), "steps": 30}

    def dpo() -> tuple[str, dict[str, Any]]:
        return model, {"models.policy.path": model, "task.name": write_pairs(data, work), "steps": 25, "buffer.size": 8}

    def reward_model() -> tuple[str, dict[str, Any]]:
        return "", {"models.reward.path": model, "task.name": write_pairs(data, work), "steps": 40, "buffer.size": 8}

    def opd() -> tuple[str, dict[str, Any]]:
        student = cut_student(model, work)
        return student, {"models.policy.path": student, "models.teacher.path": model, "steps": 25,
                         "task.name": write_solutions(data, work), "rollout.sampling.max_new": 48,
                         "evaluate.n": 0}  # fmt: skip

    return {"sft": sft, "dpo": dpo, "reward_model": reward_model, "opd": opd}


def run(name: str, trained: str, settings: dict[str, Any], work: Path) -> dict[str, Any]:
    import shuhari

    recipe, path = f"pretrained/{name}", work / f"run-{name}"
    done = shuhari.train(recipe, path, progress=lambda r: print(f"{name} step {r['step']}", flush=True), **settings)
    columns = done.metrics
    spent = columns["wall"][-1]  # of all sittings
    n = len(columns["step"])
    curve = [{k: v[i] for k, v in columns.items() if v[i] is not None and (k == "step" or "/loss/" in k or
              k.startswith("evaluate/") or k.endswith(("/accuracy", "/margin")))} for i in range(n)]  # fmt: skip
    plain = {k: v for k, v in settings.items() if not k.endswith((".path", "task.name"))}
    found = {"recipe": recipe, "settings": plain, "before": done.summary.get("before"),
             "after": done.summary.get("after"), "curve": curve, "wall_s": round(spent, 1)}  # fmt: skip
    if trained:
        found["answers"] = [{"prompt": q, "before": b, "after": a}
                            for q, b, a in zip(ASKED, ask(trained), ask(path), strict=True)]  # fmt: skip
    return found


def ask(model: str | Path) -> list[str]:
    import shuhari

    return list(shuhari.load(model).generate(list(ASKED), max_new=96, greedy=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory as transformers saves it")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the rows")
    parser.add_argument("--only", choices=("sft", "dpo", "reward_model", "opd"))
    parser.add_argument("--work", type=Path, default=Path("runs/pretrained-recipes"), help="where runs are kept")
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name, prepare in make_cases(str(Path(given.model).resolve()), given.data, work).items():
        kept = json.loads(OUT.read_text()) if OUT.is_file() else {}
        if name in kept or (given.only and name != given.only):
            continue
        trained, settings = prepare()
        kept[name] = run(name, trained, settings, work) | {"machine": machine(2)}
        OUT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
