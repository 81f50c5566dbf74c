"""What the built stages hold of papers that add a term or a reference: numbers of the catalogue, not of a recipe."""

from __future__ import annotations

from built import built
from shuhari.methods.data.a_lol.data_advantage import DataAdvantage
from shuhari.methods.data.calibrl.calibrated_imitation import Calibrated
from shuhari.methods.rlvr.ace.confident_errors import Modulate
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.objectives.likelihood import Nll
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.best import Best


def test_dph_rl_rehearses_one_right_answer_of_eight_by_jensen_shannon() -> None:
    learner = built("rlvr/dph_rl").learners["main"]
    terms, kept = learner.parts["policy"].terms, learner.buffer.buffers["rehearsed"]
    assert (kept.n, kept.keep, kept.stream) == (8, "one", "rehearse")
    assert built("rlvr/dph_rl", usual=True).learners["main"].buffer.buffers["rehearsed"].low == 1.0
    assert terms["rehearse"].objective == Divergence("js", rows="to", to="behaviour")
    assert terms["rehearse"].weight == 0.2 and terms["rehearse"].stream == "rehearse"  # of 0.05 to 0.2
    assert terms["loss"].objective == Clip(low=0.2, high=0.28) and terms["loss"].reduce == "decision"


def test_ace_is_grpo_but_for_its_factor() -> None:
    stage, bed = built("rlvr/ace"), built("beds/trie/twins")
    assert stage.learners["main"].transforms == {"confident_errors": Modulate(alpha=1.0, shape="softplus", level="row")}
    assert stage.collect == bed.collect
    assert stage.learners["main"].parts["policy"].terms == bed.learners["main"].parts["policy"].terms


def test_calibrl_has_a_tenth_of_the_guided_term_and_no_deviation() -> None:
    stage = built("data/calibrl")
    terms = stage.learners["main"].parts["policy"].terms
    assert terms["guided"].objective == Calibrated(slope=0.5, above=0.1) and terms["guided"].weight == 0.1
    assert terms["loss"].objective == Clip(low=0.2, high=0.2, dual=3.0)
    assert {t.reduce for t in terms.values()} == {"decision"} and set(terms) == {"loss", "guided"}
    assert stage.collect["advantage"] == Advantage(centre="mean", scale="none", exclude="demo")


def test_a_lol_bounds_the_ratio_of_a_whole_answer_and_sums_over_its_tokens() -> None:
    learner = built("data/a_lol").learners["main"]
    (term,) = learner.parts["policy"].terms.values()
    assert term.objective == Clip(clips="weight", level="row", low=0.9, high=0.9)  # in [0.1, 1.9]
    assert term.reduce == "constant:1" and learner.transforms == {"data_advantage": DataAdvantage(positive=True)}
    assert learner.buffer.wanted() == 0 and learner.buffer.keep == "all"  # nothing is sampled while it learns


def test_raft_imitates_the_best_of_eight() -> None:
    stage = built("data/raft", usual=True)
    learner = stage.learners["main"]
    (term,) = learner.parts["policy"].terms.values()
    assert isinstance(term.objective, Nll) and (term.reduce, term.stream, term.weight) == ("row", "rl", 1.0)
    assert learner.transforms == {"keep_best": Best(keep=1, above=0.0)} and stage.n == 8 and not stage.collect
