"""The answers of a run before and after training, as its end tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shuhari import train
from shuhari.desk.ends import tabulate_answers
from shuhari.store import Run


def event(step: int, *texts: str) -> dict[str, Any]:
    answers = [{"problem": str(i), "prompt": f"{i}?", "text": t, "grade": 0.0} for i, t in enumerate(texts)]
    return {"step": step, "kind": "answers", "data": {"step": step, "answers": answers}}


def test_before_is_the_begin_of_the_last_stage_and_after_the_last_evaluation() -> None:
    columns = {"step": [1, 2, 3, 4], "stage": ["warm", "warm", "rl", "rl"]}
    events = [event(0, "a", "b"), event(2, "c\nd", "e"), event(3, "f", "g"), event(4, "", "x" * 80)]
    assert tabulate_answers(events, columns) == [("0?", "c d", "(nothing)"), ("1?", "e", f"{'x' * 50}…")]
    assert tabulate_answers(events, columns, 1) == [("0?", "c d", "(nothing)")]
    assert tabulate_answers(events[:2], columns) == tabulate_answers([], columns) == []


def test_a_run_keeps_greedy_answers_of_each_evaluation(tmp_path: Path) -> None:
    small = {"models.policy": {"use": "causal", "hidden": 16, "layers": 1, "heads": 2}, "buffer.size": 2}
    rows = [{"prompt": f"{i}", "answer": "a", "split": "test" if i > 3 else "train"} for i in range(16)]
    more = {"stage.rl.steps": 2, "evaluate.every": 1, "evaluate.n": 12, "rollout.n": 2, "remove": ["stage.warm-up"]}
    run = train("baselines/grpo", tmp_path / "run", dataset=rows, **small, **more)
    events = [e["data"] for e in Run(run.path).events("answers")]
    assert [e["step"] for e in events] == [0, 1, 2]
    assert [len(e["answers"]) for e in events] == [8, 8, 8] and {a["grade"] for a in events[0]["answers"]} <= {0.0, 1.0}
    assert len(tabulate_answers(Run(run.path).events("answers"), run.metrics)) == 4
