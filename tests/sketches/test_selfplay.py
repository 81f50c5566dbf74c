"""Search Self-play: what the proposer earns, who meets the solver, refills from the pool, and a step of both roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import harness
import numpy as np
import pytest
import torch
from selfplay import Proposals, Searchable, SelfPlay
from torch import nn

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.data import Problem, Request, Step, Trajectory, code
from shuhari.events import Collected
from shuhari.learners.parts import Term
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.needs import Trace
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.ports import Curriculum, Policy, Rollout
from shuhari.tasks.source import Listed, answer_text
from shuhari.testing import Role, check_resumed
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Only

FACTS = {"a": "x", "b": "y", "c": "x", "d": "y", "e": "x", "f": "y"}  # subject -> what is true of it
ALPHABET = "abcdefxy?>=|"


@dataclass
class Facts:
    """Given an answer (`?x>`), ask about a subject (`a`), whose question is `a=`. A document is subject and answer."""

    alphabet: str = ALPHABET

    def problems(self, split: str) -> Listed:
        return Listed([Problem("facts", x, f"?{x}>", x) for x in "xy"])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None:
        return {"score": float(answer_text(steps) == problem.answer)}

    def derive(self, problem: Problem, text: str) -> Problem | None:
        question = Problem("facts", f"{text}{problem.id}", f"{text}=", problem.answer, info={"question": 1})
        return question if text in FACTS else None

    def documents(self, steps: Sequence[Step]) -> list[str]:
        return [c + FACTS[c] for c in answer_text(steps) if c in FACTS]

    def noise(self, n: int, draw: Any) -> list[str]:
        return [list(FACTS)[i] + list(FACTS.values())[i] for i in (draw(len(FACTS)) for _ in range(n))]

    def reading(self, question: Problem, documents: Sequence[str]) -> str:
        return f"{''.join(documents)}|{question.prompt!s}"

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


@dataclass
class Reader:
    """Reads the answer in the documents of its prompt: what a model that reads well would say."""

    kind: Any = "exact"
    module: nn.Module = field(init=False, default_factory=lambda: nn.Embedding(1, 1))

    def build(self, task: Any) -> None:
        self.text = character_tokenizer(ALPHABET)
        self.encode, self.decode = self.text.encode, self.text.decode

    def __call__(self, batch: Batch) -> Any:
        raise NotImplementedError

    def sample(self, contexts: Any, sampling: Any, *, noise: Any) -> list[Trace]:
        out = []
        for context in contexts:
            documents, _, question = self.decode(context).partition("|")
            answer = documents[documents.find(question[0]) + 1]
            out.append(Trace(self.encode(answer), np.zeros(1, np.float32)))
        return out


@dataclass
class Scripted:
    """A rollout of `role` that says what it is told."""

    role: str
    texts: Sequence[str]
    asked: list[Request] = field(default_factory=list)
    accepts: Mapping[str, Any] = field(default_factory=dict)

    async def group(self, request: Request, ctx: Any) -> list[Any]:
        self.asked.append(request)
        context = ctx.encode(request.problem.prompt)
        steps = [Step.of(context, ctx.encode(t), role=self.role, info={"text": t}) for t in self.texts[: request.n]]
        return [Trajectory(request, (s,)) for s in steps]


task: Searchable = Facts()
rollout: Rollout = SelfPlay()
curriculum: Curriculum = Proposals(Sequential())
reader: Policy = Reader()


def run_of(rollout: Rollout, steps: int = 1) -> Any:
    models = {
        "policy": harness.tiny(), "proposer": Role(same_as="policy"), "solver": Role(same_as="policy"),
        "reference": Role(init="policy"), "reader": Reader(),
    }  # fmt: skip
    parts = {
        "solver": harness.part(clip=Term(Clip(high=0.285), "solver"), kl=Term(Divergence(), "solver", 0.01)),
        "proposer": harness.part(reinforce=Term(Clip(behaviour="present", advantage="proposed"), "proposer")),
    }
    collect = {
        "solver": Only("role", "solver", stream="solver", of="rl"),
        "proposer": Only("role", "proposer", stream="proposer", of="rl"),
        "answers": Advantage(stream="solver"),
        "questions": Advantage(unit="batch", scale="batch", stream="proposer", into="proposed"),
    }
    common: dict[str, Any] = {"rollout": rollout, "curriculum": Proposals(Sequential()), "collect": collect}
    buffer = Fresh(4, stream="solver")
    return harness.make(
        harness.stage(parts, task=Facts(), models=models, buffer=buffer, n=5, max_new=1, steps=steps, **common)
    )


def played(proposal: str, answers: str, **fields: Any) -> tuple[list[Any], Scripted]:
    """The group of one request for a question with the answer x."""
    solver = Scripted("solver", answers)
    run = run_of(SelfPlay(Scripted("proposer", [proposal]), solver, reader="reader", **fields))
    run.enter_stage()
    request = run.ctx.stamp_request(Request(Problem("facts", "x", "?x>", "x")), "")
    return run.ctx.wait(run.ctx.rollout.group(request, run.ctx)), solver


def test_what_the_proposer_earns() -> None:
    group, solver = played("a", "xxyyx")
    assert group[0].steps[-1].reward["score"] == pytest.approx(0.4)
    assert [t.steps[-1].reward["score"] for t in group[1:]] == [1, 1, 0, 0, 1]
    assert solver.asked[0].problem.prompt == "a="
    assert {t.request.key for t in group} == {"x#0"}  # one group
    assert played("a", "xxxxx")[0][0].steps[-1].reward["score"] == 0
    assert SelfPlay(middle=True).pay([1, 0]) == 1


@pytest.mark.parametrize("proposal", ["b", "x", "?"])  # its answer is y; no question
def test_a_question_that_does_not_stand_never_reaches_the_solver(proposal: str) -> None:
    group, solver = played(proposal, "xxxxx")
    assert len(group) == 1 and group[0].steps[-1].reward["score"] == 0
    assert not solver.asked


def test_a_short_step_is_filled_from_the_pool() -> None:
    run = run_of(SelfPlay(Scripted("proposer", ["a"]), Scripted("solver", "xyyyy"), reader="reader"))
    run.enter_stage()
    learner, sizes = run.stage.learners["main"], []
    while want := run.wanted():  # asked about x and y in turn, `a` stands for half of the requests
        batch = run.apply(run.stage.collect, run.collect(want))
        run.tell(Collected(batch))
        played = [int((batch["role"] == code(role)).sum()) for role in ("proposer", "solver")]
        sizes.append((want, *played))
    assert sizes == [(4, 4, 10), (2, 0, 10)]
    [batch] = learner.buffer.draw(run.ctx)
    proposer = (batch["role"] == code("proposer")).nonzero().squeeze(1)
    assert batch.outcome()[proposer].tolist() == pytest.approx([0.8, 0.0, 0.8, 0.0])
    a = batch["proposed"][proposer, 0]
    torch.testing.assert_close(a, torch.tensor([1.0, -1.0, 1.0, -1.0]) * 0.75**0.5, atol=1e-3, rtol=0)
    solver = batch["advantage"][batch["role"] == code("solver")][:5, 0]
    torch.testing.assert_close(solver, torch.tensor([0.8, -0.2, -0.2, -0.2, -0.2]) / 0.2**0.5, atol=1e-3, rtol=0)


def test_a_step_of_training_of_both_roles() -> None:
    run = run_of(SelfPlay(reader="reader"), steps=2)
    run.enter_stage()
    start = harness.weights(run)
    for report in harness.train(run):
        assert report["solver/rows"] >= 20  # 4 questions, 5 answers each
        assert report["proposer/rows"] >= 4
        assert report["spent/updates"] == 2 * report["step"]
    assert not torch.equal(start, harness.weights(run))
    assert run.ctx.models["solver"] is run.ctx.models["proposer"] is run.ctx.models["policy"]


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    check_resumed(lambda: run_of(SelfPlay(reader="reader"), steps=2))
