"""RAFT as its recipe says it: the best of a group is imitated."""

from __future__ import annotations

from built import built
from shuhari.objectives.likelihood import Nll
from shuhari.transforms.best import Best


def test_it_imitates_the_best_of_eight() -> None:
    stage = built("data/raft", usual=True)
    learner = stage.learners["main"]
    (term,) = learner.parts["policy"].terms.values()
    assert isinstance(term.objective, Nll) and (term.reduce, term.stream, term.weight) == ("row", "rl", 1.0)
    assert learner.transforms == {"keep_best": Best(keep=1, above=0.0)} and stage.n == 8 and not stage.collect
