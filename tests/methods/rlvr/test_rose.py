"""Answers grown from where likely tokens mean different things: scores and credit by hand, pieces as rows."""

from __future__ import annotations

import asyncio
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import ContractError, Problem, Ramp, Request, Sampling
from shuhari.kernel.pack import pack
from shuhari.methods.rlvr.rose.semantic_branches import (
    CHUNK,
    Answer,
    Semantic,
    find_embeddings,
    find_highest,
    score_tokens,
)
from shuhari.models.text.causal import Causal
from shuhari.needs import Trace
from shuhari.transforms.tree import NodeAdvantage

PROMPT = Problem("t", "p", "ab")
OPPOSED = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [0.5, 0.0]])  # of any length


class Text:
    """The ids of a to j are 0 to 9, which are also how texts are shown; embeddings of 11 tokens, of which 3 is 2 turned
    about: of these two H D is the larger the more even they are."""

    end = 10

    def __init__(self) -> None:
        weight = torch.eye(11)
        weight[3] = -weight[2]
        self.module = SimpleNamespace(lm=SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(weight=weight)))

    def encode(self, text: str) -> Any:
        return np.array([ord(x) - 97 for x in text], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(chr(97 + i) for i in ids if i < 10)


class Scripted:
    """Says the next of given answers, each token of which has two likely ones of given entropy."""

    def __init__(self, *answers: tuple[list[int], list[float]]) -> None:
        self.answers, self.asked = list(answers), list[tuple[list[int], int]]()

    async def sample(self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Any) -> list[Trace]:
        assert (n, sampling.top) == (1, 20)
        self.asked.append((np.asarray(context).tolist(), sampling.max_new))
        said, likely = self.answers.pop(0)
        ids, k = np.array(said, np.int32), len(said)
        top = np.tile(np.array([2, 3], np.int32), (k, 1))
        p = np.array([[x, 1 - x] for x in likely], np.float32)
        info = {"top": top, "top_logp": np.log(p), "ended": said[-1] == 10}
        return [Trace(ids, np.log(p[:, 0]), 3, info)]


def grown(of: Semantic, engine: Scripted, n: int, max_new: int = 6) -> Any:
    task = SimpleNamespace(environment=lambda problem: None)
    ctx = testing.context(models={"policy": Text()}, task=task, engine=engine)
    request = Request(PROMPT, n, Sampling(max_new=max_new), key="p#0")
    (tree,) = asyncio.run(of.group(request, ctx))
    return tree


@pytest.mark.parametrize(
    ("pair", "cosine"), [((0, 2), 0.0), ((0, 1), -1.0), ((0, 3), 1.0)], ids=["apart", "opposed", "alike"]
)
def test_the_score_of_two_even_tokens(pair: tuple[int, int], cosine: float) -> None:
    """D = -sum over i != j of p_i p_j cos: -cos / 2 at a half each; as released the score is H D."""
    ids, logp = np.array([pair]), np.log(np.full((1, 2), 0.5))
    assert score_tokens(ids, logp, OPPOSED)[0] == pytest.approx(-log(2) * cosine / 2, abs=1e-7)
    assert score_tokens(ids, logp, OPPOSED, "shifted")[0] == pytest.approx(log(2) * (1 - cosine / 2))
    assert score_tokens(ids, logp, None)[0] == pytest.approx(log(2))


def test_a_sure_token_wins_over_two_alike_as_released_alone() -> None:
    ids, logp = np.array([[0, 3], [0, -1]]), np.array([[log(0.5), log(0.5)], [0.0, -np.inf]])
    released, shifted = score_tokens(ids, logp, OPPOSED), score_tokens(ids, logp, OPPOSED, "shifted")
    assert (released.argmax(), shifted.argmax()) == (1, 0) and released[1] == shifted[1] == 0


def test_the_score_is_the_double_sum_over_pairs() -> None:
    """Of more tokens than embeddings are held of at once, each with an entry that stands for no token."""
    rng, k = np.random.default_rng(1), 2 * CHUNK + 3
    e = torch.from_numpy(rng.normal(size=(9, 4)))
    p = rng.dirichlet(np.ones(5), k)
    ids = np.array([rng.permutation(9)[:5] for _ in range(k)])
    unit = (e / e.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit.T
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j]
    d = -sum(p[:, i] * p[:, j] * cosines[ids[:, i], ids[:, j]] for i, j in pairs)
    padded = np.insert(ids, 5, -1, 1), np.insert(np.log(p), 5, -np.inf, 1)
    h = -(p * np.log(p)).sum(1)
    np.testing.assert_allclose(score_tokens(*padded, e), h * d, atol=1e-6)
    np.testing.assert_allclose(score_tokens(*padded, e, "shifted"), h * (1 + d), atol=1e-6)
    np.testing.assert_allclose(score_tokens(*padded, e, "entropy"), h)


def test_embeddings_are_those_that_tokens_are_read_with() -> None:
    model = Causal(hidden=16, layers=1, heads=2, intermediate=16, tied=False)
    model.build(SimpleNamespace(spaces=lambda: None, alphabet="abc"))
    found = find_embeddings(model)
    read, said = model.module.lm.model.embed_tokens.weight, model.module.linear[0]
    assert found.data_ptr() == read.data_ptr() != said.data_ptr()
    with pytest.raises(ContractError, match="SimpleNamespace has no embeddings of tokens"):
        find_embeddings(SimpleNamespace())


def answer(score: list[float], parent: Answer | None = None, begin: int = 0) -> Answer:
    k = len(score)
    return Answer(np.arange(k), np.zeros(k), np.zeros(k), np.array(score), True, parent, begin)


def test_the_token_of_largest_score_and_whose_it_is() -> None:
    first = answer([0.1, 0.3, 0.9, 0.2])
    assert find_highest([first]) == (first, 2)
    second = answer([0.1, 0.3, 0.9, 0.4], first, 2)  # it left at the highest: a third one leaves the first, beside it
    assert find_highest([first, second]) == (first, 2)
    third = answer([0.1, 0.3, 0.9, 0.95], first, 2)
    assert find_highest([first, second, third]) == (third, 3)
    assert find_highest([answer([1.0, 0.5])]) == (None, 0)  # to begin with nothing is to begin anew


def test_answers_are_grown_and_pieces_are_rows_learnt_once() -> None:
    """2 3 4 10, then from before its third token 5 6 10, then from before the second 10 of that, 7 10."""
    even, sure = 0.5, 0.99
    first = ([2, 3, 4, 10], [sure, 0.9, even, sure])
    second = ([5, 6, 10], [even, sure, 0.45])  # at the place where it left both are even: the highest is there still
    third = ([7, 10], [even, sure])
    engine = Scripted(first, second, third)
    tree = grown(Semantic(restart=0.0), engine, 3)
    assert engine.asked == [([0, 1], 6), ([0, 1, 2, 3], 4), ([0, 1, 2, 3], 4)]
    assert [s.action.tolist() for s in tree.steps] == [[2, 3], [4, 10], [5, 6, 10], [7, 10]]
    assert [s.parent for s in tree.steps] == [None, 0, 0, 0]
    assert [s.info["text"] for s in tree.steps] == ["cd", "e", "fg", "h"]
    assert [s.info["cut"] for s in tree.steps] == [0.0, 0.0, 2.0, 2.0]
    assert [s.info["ended"] for s in tree.steps] == [False, True, True, True]
    assert [list(path) for path in tree.paths()] == [[0, 1], [0, 2], [0, 3]]
    logp = np.concatenate([tree.steps[0].logp, tree.steps[1].logp])
    np.testing.assert_allclose(logp, np.log([sure, 0.9, even, sure]), rtol=1e-5)
    batch = pack([tree])
    assert int(batch["mask"].sum()) == 9 and "top" not in batch  # four rows, no token twice


def test_a_branch_of_a_branch() -> None:
    even, sure = 0.5, 0.99
    engine = Scripted(([2, 3, 10], [sure, 0.8, sure]), ([4, 5, 10], [0.8, even, sure]), ([6, 10], [even, sure]))
    tree = grown(Semantic(restart=0.0), engine, 3)
    assert [s.action.tolist() for s in tree.steps] == [[2], [3, 10], [4], [5, 10], [6, 10]]
    assert [s.parent for s in tree.steps] == [None, 0, 0, 2, 2]
    assert [s.context.tolist() for s in tree.steps] == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 4]]


def test_pieces_are_credited_with_what_they_change() -> None:
    """By hand: of three answers, 1 0 1, the second piece of the last two is worth a half, and sums are r - mean."""
    even, sure = 0.5, 0.99
    engine = Scripted(([2, 3, 10], [sure, 0.8, sure]), ([4, 5, 10], [0.8, even, sure]), ([6, 10], [even, sure]))
    tree = grown(Semantic(restart=0.0), engine, 3).graded([{"score": x} for x in (1.0, 0.0, 1.0)])
    batch = pack([tree])
    batch = batch.put({"reward": batch["reward/score"]})
    found = NodeAdvantage(less="parent")(batch, testing.context())["advantage"][:, 0] / 2
    mean = 2 / 3
    assert found.tolist() == pytest.approx([0.0, 1 - mean, 0.5 - mean, 0 - 0.5, 1 - 0.5], abs=1e-6)
    sums = [found[list(path)].sum().item() for path in ((0, 1), (0, 2, 3), (0, 2, 4))]
    assert sums == pytest.approx([1 - mean, 0 - mean, 1 - mean], abs=1e-6)


def test_with_restarts_alone_answers_are_independent() -> None:
    first = ([2, 3, 4, 10], [0.99, 0.9, 0.5, 0.99])
    engine = Scripted(first, first, first)
    tree = grown(Semantic(restart=1.0), engine, 3)
    assert [s.parent for s in tree.steps] == [None] * 3 and engine.asked == [([0, 1], 6)] * 3
    assert [len(path) for path in tree.paths()] == [1, 1, 1]


@pytest.mark.parametrize(
    "sampling", [Sampling(top_p=0.9), Sampling(stop=("x",)), Sampling(temperature=Ramp(1.0, 0.5, over=3))]
)
def test_what_it_cannot_do_is_refused(sampling: Sampling) -> None:
    task = SimpleNamespace(environment=lambda problem: None)
    ctx = testing.context(models={"policy": Text()}, task=task, engine=Scripted())
    with pytest.raises(ContractError, match="expected a prompt in text without a hint"):
        asyncio.run(Semantic().group(Request(PROMPT, 2, sampling, key="k"), ctx))
    with pytest.raises(ValueError, match="2 or more"):
        Semantic(top=1)
