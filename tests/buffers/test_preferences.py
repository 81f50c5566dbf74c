"""Recorded preferences as rows and links, and what a draw remembers."""

from types import SimpleNamespace
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.buffers.preferences import Preferences
from shuhari.data import Problem
from shuhari.kernel.join import cat

END = 77
NAN = float("nan")


def context(*rows):
    problems = [Problem("t", str(i), str(i), None, solution, info) for i, (solution, info) in enumerate(rows)]

    class Source:
        def size(self):
            return len(problems)

        def __getitem__(self, i):
            return problems[i]

    digits = SimpleNamespace(encode=lambda text: np.array([int(c) for c in text], np.int32), end=END)
    task = SimpleNamespace(problems=lambda split: Source(), environment=lambda problem: None)
    return testing.context(task=task, models={"policy": digits})


def said(batch, rows):
    return [("".join(map(str, s.context)), s.action[:-1].tolist()) for s in (batch.steps[i] for i in rows)]


PAIRS = [(None, {"chosen": "12", "rejected": "3"}), (None, {"chosen": "45", "rejected": "67"})]
LABELS = [("12", {"label": True}), ("3", {"label": False}), ("45", {"label": True})]


def test_a_pair_is_two_rows_and_a_link():
    (batch,) = Preferences(size=2, shuffle=False).draw(context(*PAIRS))
    index, columns = batch.links["pairs"]
    assert columns == {} and set(batch.links) == {"pairs"}
    assert said(batch, index[:, 0]) == [("0", [1, 2]), ("1", [4, 5])]
    assert said(batch, index[:, 1]) == [("0", [3]), ("1", [6, 7])]
    assert bool((batch["action"].gather(1, batch["mask"].sum(1, keepdim=True) - 1) == END).all())
    assert batch.stream == "rl" and bool(batch["logp"][batch["mask"]].isnan().all())
    assert len(batch["group"].unique()) == 2 and batch["group"][index[:, 0]].equal(batch["group"][index[:, 1]])


def test_numbers_of_a_problem_are_columns_of_its_link():
    rows = [(None, {**PAIRS[0][1], "margin": 2, "label": 0.75, "user": 7, "text": "x", "big": 10**40}),
            (None, {**PAIRS[1][1], "margin": None, "label": True})]  # fmt: skip
    (batch,) = Preferences(size=2, shuffle=False).draw(context(*rows))
    columns = {k: v.tolist() for k, v in batch.links["pairs"][1].items()}
    assert columns == {"margin": [2.0, pytest.approx(NAN, nan_ok=True)], "label": [0.75, 1.0], "user": [7.0, ANY]}
    assert batch["info/margin"][:2].tolist() == [2.0, 2.0] and bool(batch["info/margin"][2:].isnan().all())
    assert not batch.links["pairs"][1]["user"][1:].isfinite().any()
    half = batch.take(batch["group"] == batch["group"][0])
    assert half.links["pairs"][1]["label"].tolist() == [0.75]
    (single,) = Preferences(size=2, shuffle=False, links="labels").draw(context(*rows))
    of = single.links["labels"][1]
    assert of["label"].tolist() == [1, 0, 1, 0] and of["margin"][:2].tolist() == [2.0, 2.0]


def test_a_text_in_the_place_of_a_number_is_named():
    rows = [(None, {**PAIRS[0][1], "margin": "0.5"})]
    with pytest.raises(ValueError, match=r"its 'margin' is the text '0\.5': expected a number.* JSON Lines"):
        list(Preferences(size=1, shuffle=False).draw(context(*rows)))


def test_links_of_parts_that_know_different_things_are_joined():
    made = [context((None, {**PAIRS[0][1], **more})) for more in ({"margin": 2.0}, {"weight": 3.0}, {})]
    draws = [next(Preferences(size=1, shuffle=False).draw(ctx)) for ctx in made]
    index, columns = cat(draws).links["pairs"]
    assert index.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert columns["margin"].nan_to_num(-9.0).tolist() == [2, -9, -9]
    assert columns["weight"].nan_to_num(-9.0).tolist() == [-9, 3, -9]


def test_labels_bring_each_prompt_again_with_anothers_answer():
    (batch,) = Preferences(size=3, shuffle=False).draw(context(*LABELS))
    index, columns = batch.links["labels"]
    assert said(batch, index[:, 0]) == [("0", [1, 2]), ("1", [3]), ("2", [4, 5])]
    assert columns["label"].tolist() == [1, 0, 1] and set(batch.links) == {"labels", "mismatched"}
    assert said(batch, batch.links["mismatched"][0][:, 0]) == [("0", [3]), ("1", [4, 5]), ("2", [1, 2])]


def test_pairs_may_be_read_as_labels():
    (batch,) = Preferences(size=2, shuffle=False, links="labels").draw(context(*PAIRS))
    index, columns = batch.links["labels"]
    assert said(batch, index[:, 0]) == [("0", [1, 2]), ("0", [3]), ("1", [4, 5]), ("1", [6, 7])]
    assert columns["label"].tolist() == [1, 0, 1, 0]
    other = said(batch, batch.links["mismatched"][0][:, 0])
    assert other == [("0", [4, 5]), ("0", [6, 7]), ("1", [1, 2]), ("1", [3])]


def test_minibatches_keep_links_whole():
    (batch,) = Preferences(size=3, shuffle=False).draw(context(*LABELS))
    half = batch.take(batch["group"] != batch["group"][0])
    assert said(half, half.links["labels"][0][:, 0]) == [("1", [3]), ("2", [4, 5])]
    assert half.links["labels"][1]["label"].tolist() == [0, 1] and len(half.links["mismatched"][0]) == 2


def test_it_goes_on_where_it_was_and_ids_differ():
    ctx = context(*LABELS)
    buffer = Preferences(size=2, draws=3, shuffle=False)
    drawn = list(buffer.draw(ctx))
    assert [said(b, b.links["labels"][0][:, 0])[0][0] for b in drawn] == ["0", "2", "1"]
    assert buffer.state == {"at": 6} and buffer.wanted() == 0
    assert len(torch.cat([b["id"] for b in drawn]).unique()) == 12
    four = list(Preferences(size=2, draws=3, links="labels").draw(context(*PAIRS)))  # rows a problem
    assert len(torch.cat([b["id"] for b in four]).unique()) == 24
    again = Preferences(size=2, shuffle=False)
    again.state = {"at": 4}
    assert next(iter(again.draw(ctx)))["id"].equal(drawn[2]["id"])


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        ([("1", {}), ("2", {})], {}, "problem '0' of t has no 'label'; known: none: expected 'chosen' and 'rejected'"),
        ([(None, {"chosen": "1", "reject": "2"})], {"size": 1}, "no 'rejected'; did you mean 'reject'"),
        ([PAIRS[0], LABELS[0]], {}, "problem '1' of t has no 'chosen'"),
        (LABELS, {"links": "pairs"}, "problem '0' of t has no 'chosen' and 'rejected'"),
        (LABELS, {"size": 1}, "labels need 2 problems"),
        ([("1", {"label": "yes"})] * 2, {}, "its label is 'yes': expected true or false"),
        ([(None, {"label": True})] * 2, {}, "has no solution and no answer"),
    ],
)
def test_what_is_no_preference_is_named(rows, settings, told):
    with pytest.raises(ValueError, match=told):
        list(Preferences(**{"size": 2, "shuffle": False, **settings}).draw(context(*rows)))


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'pairs'"):
        Preferences(links="pair")
    with pytest.raises(ValueError, match="size is 0"):
        Preferences(size=0)
