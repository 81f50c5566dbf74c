"""A reward model, a process reward model and a judge, trained on people's feedback, and a policy that each rewards.

    python benchmarks/learned_rewards.py MODEL --data DIR            all of it; what is done is not done again
    python benchmarks/learned_rewards.py MODEL --data DIR --only judge

MODEL is a directory as transformers saves it. DIR has qa_feedback_dev.json (allenai/FineGrainedRLHF). Each model trains
adapters by its recipe of `pretrained/`, at three times the rate, for 100 steps, is exported and loaded by transformers,
which has to give the same numbers; its accuracy is that of held-out questions. Then `pretrained/grpo` trains twenty
steps by it, beside numbers that it is not trained on: the other learned rewards, of which the process reward model has
seen other questions, and the words in common with a person's answer. Writes
benchmarks/results/pretrained/learned_rewards.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import learned_rows as rows  # noqa: E402
from common import RESULTS, machine  # noqa: E402

OUT = RESULTS / "pretrained" / "learned_rewards.json"
STEPS = 100
SIZES = {"pairs": 2, "steps": 3, "judge": 2}  # rows of a step
RATE = {"from": 3e-4, "to": 3e-5, "warm": 0.05}  # three times the recipes': steps are few
EVALUATED = {"every": 50, "n": 32}
CHECKED = 16  # held-out texts on which transformers is compared
CONTEXT = 512

Found = dict[str, Any]


def write(file: Path, **splits: Sequence[rows.Row]) -> str:
    lines = [json.dumps({**row, "split": split}) for split, some in splits.items() for row in some]
    file.write_text("\n".join(lines) + "\n")
    return f"file/{file}"


class Bar:
    """The runs, exports and measurements, below the folder `work`."""

    def __init__(self, model: str, data: Path, work: Path) -> None:
        from transformers import AutoTokenizer

        self.model, self.work = model, work
        words = AutoTokenizer.from_pretrained(model)
        self.count: rows.Counts = lambda text: len(words(text)["input_ids"])
        self.parts = rows.split_questions(data)
        self.held = rows.draw_held(self.parts["held"], self.count)

    # ------------------------------------------------------------ training

    def train(self, recipe: str, name: str, settings: Found) -> Found:
        """Trains, or goes on, a run. Returns its curve and what it cost."""
        import shuhari

        tell: Callable[[Any], None] = lambda r: print(f"{name} step {r['step']}", flush=True)  # noqa: E731
        done = shuhari.train(recipe, self.work / f"run-{name}", progress=tell, **settings)
        columns = done.metrics
        kept = ("reward/", "evaluate/", "rollout/", "policy/loss", "spent/judge", "spent/failed")
        curve = [
            {k: v[i] for k, v in columns.items() if k == "step" or (k.startswith(kept) and v[i] is not None)}
            for i in range(len(columns["step"]))
        ]
        plain = {k: v for k, v in settings.items() if not k.endswith((".path", "task.name"))}
        plain = json.loads(json.dumps(plain).replace(str(self.work), "RUNS").replace(str(HERE), "benchmarks"))
        ends = {at: done.summary.get(at) for at in ("before", "after")}
        return {"recipe": recipe, "settings": plain, **ends, "curve": curve, "wall_s": round(columns["wall"][-1], 1)}

    def export(self, name: str, role: str) -> Path:
        import shuhari

        place = self.work / name
        if not place.is_dir():
            shuhari.export(self.work / f"run-{name}", place, role=role, reward_model=role == "reward")
        return place

    def learn_scores(self, name: str, part: str, recipe: str, made: Callable[..., list[rows.Row]]) -> Found:
        """A reward model of answers or of steps."""
        splits = {"train": made(self.parts[part], self.count), "test": made(self.parts["held"], self.count)}
        settings = {
            "models.reward.path": self.model, "models.reward.context": CONTEXT,
            "steps": STEPS, "buffer.size": SIZES[name],
            "part.reward.optimiser.lr": RATE, "evaluate": EVALUATED,
            "task.name": write(self.work / f"{name}.jsonl", **splits),
        }  # fmt: skip
        if recipe.endswith("process_reward_model"):
            settings["buffer.separator"] = rows.STOP
        found = self.train(recipe, name, settings)
        self.export(name, "reward")
        return found | {"rows": len(splits["train"])}

    def learn_verdicts(self, name: str) -> Found:
        """A judge that writes its verdict."""
        splits = {"train": rows.make_verdicts(self.parts["first"], self.count),
                  "test": rows.make_verdicts(self.parts["held"], self.count)}  # fmt: skip
        settings = {
            "models.policy.path": self.model, "models.policy.context": CONTEXT,
            "steps": STEPS, "buffer.size": SIZES[name],
            "part.policy.optimiser.lr": RATE, "evaluate": EVALUATED | {"samples": 0},
            "rollout.sampling.max_new": 4, "task.name": write(self.work / f"{name}.jsonl", **splits),
        }  # fmt: skip
        found = self.train("pretrained/sft", name, settings)
        self.export(name, "policy")
        return found | {"rows": len(splits["train"])}

    # ------------------------------------------------------------ measuring

    def measure(self, name: str) -> Found:
        """Held-out accuracy by transformers, and how far the run's own numbers are from these."""
        import measuring_rewards as measuring

        run, place = self.work / f"run-{name}", self.work / name
        if name == "judge":
            return measuring.measure_judge(run, place, self.held, CHECKED)
        if name == "steps":
            labelled = rows.make_steps(self.parts["held"], self.count)
            return measuring.measure_steps(run, place, self.held, labelled, CHECKED)
        return measuring.measure_scores(run, place, self.held, CHECKED)

    # ------------------------------------------------------------ the policy

    def reinforce(self, name: str) -> Found:
        """GRPO by one learned reward, the reward model and the process reward model beside."""
        watched = {n: self.graders[n] | {"name": n} for n in ("pairs", "steps") if n != name}
        learnt = self.graders[name]
        graders = {
            "reward.learnt": learnt | {"name": "learnt"},
            **{f"reward.{n}": x for n, x in watched.items()},
            "reward.overlap.use": f"{HERE / 'learned_rows.py'}:overlap",
            "reward.words.use": f"{HERE / 'learned_rows.py'}:words",
            "reward.weights": {"learnt": 1.0, **dict.fromkeys((*watched, "overlap", "words"), 0.0)},
            "remove": ["reward.maths", "reward.weights.maths"],
        }
        if "role" in learnt:
            graders["models.judge"] = {"use": "causal", "path": str(self.work / "judge"), "context": CONTEXT}
        splits = {"train": rows.make_questions(self.parts["first"]), "test": rows.make_questions(self.parts["held"])}
        return self.train("pretrained/grpo", f"grpo-{name}", {
            **graders, "models.policy.path": self.model, "models.policy.context": CONTEXT, "steps": 20,
            "buffer.size": 2, "rollout.n": 4, "rollout.sampling.max_new": 48,
            "evaluate": {"every": 10, "n": 16, "samples": 0},
            "task.name": write(self.work / "questions.jsonl", **splits),
        })  # fmt: skip

    @property
    def graders(self) -> dict[str, Found]:
        """The three learned rewards, as recipes have them."""
        by_step = {"level": "step", "form": "min", "separator": rows.STOP}
        return {
            "pairs": {"use": "reward_model", "path": str(self.work / "pairs")},
            "steps": {"use": "reward_model", "path": str(self.work / "steps"), **by_step},
            "judge": {"use": "judge", "role": "judge", "against": "reference", "prompt": rows.ASKED, "fence": False,
                      "max_new": 4, "longest": 600},
        }  # fmt: skip

    def list_cases(self) -> dict[str, Callable[[], Found]]:
        """name -> what makes it, in the order in which it is made."""
        pairs, process = "pretrained/reward_model", "pretrained/process_reward_model"
        return {
            "longer, held out": self.measure_lengths,
            "pairs": partial(self.learn_scores, "pairs", "first", pairs, rows.make_pairs),
            "pairs, held out": partial(self.measure, "pairs"),
            "steps": partial(self.learn_scores, "steps", "second", process, rows.make_steps),
            "steps, held out": partial(self.measure, "steps"),
            **{f"grpo, {n}": partial(self.reinforce, n) for n in ("pairs", "steps")},
            "judge": partial(self.learn_verdicts, "judge"),
            "judge, held out": partial(self.measure, "judge"),
            "grpo, judge": partial(self.reinforce, "judge"),
        }

    def measure_lengths(self) -> Found:
        """What the longer answer of a held-out pair would score, and the pairs."""
        right = [0.5 * (1 + (len(p["chosen"]) > len(p["rejected"])) - (len(p["chosen"]) < len(p["rejected"])))
                 for p in self.held]  # fmt: skip
        questions = len({p["prompt"] for p in self.held})
        return {"accuracy": statistics.mean(right), "pairs": len(right), "questions": questions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory as transformers saves it")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the rows")
    parser.add_argument("--only", help="cases with this in their name")
    parser.add_argument("--work", type=Path, default=Path("runs/learned-rewards"), help="where runs are kept")
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    bar = Bar(str(Path(given.model).resolve()), given.data, work)
    for name, make in bar.list_cases().items():
        kept = json.loads(OUT.read_text()) if OUT.is_file() else {}
        if name in kept or (given.only and given.only not in name):
            continue
        load = os.getloadavg()[0]
        found = make() | {"machine": machine(2)}
        found["machine"]["load"] = max(load, found["machine"]["load"])
        OUT.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
