"""The microscope: groups found, a group token by token, whatever a model wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from board_runs import MARKUP

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views import rollouts
from shuhari.desk.plain import to_json
from shuhari.desk.serving.refusals import Refused
from shuhari.desk.tokens import find_ranges, unroll
from shuhari.store import Store

LONG = 100_000  # tokens of an answer


def act(*tokens: int, parent: int | None = None, logp: float = -1.0, **more: Any) -> Step:
    k = len(tokens)
    return Step.of(np.zeros(1, np.int32), np.array(tokens, np.int32), np.full(k, logp, np.float32), 3,
                   parent=parent, **more)  # fmt: skip


def make_group(*samples: Trajectory, **more: Any) -> dict[str, Any]:
    problem = samples[0].request.problem
    return {"group": "g", "task": problem.task, "problem": problem.id, "why": "worst", "score": 0.5, "worst": 0.0,
            "best": 1.0, "trajectories": samples, **more}  # fmt: skip


def ask(problem: str, prompt: Any = "2+2=") -> Request:
    return Request(Problem("sums", problem, prompt, "4"), 2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A run `made` of hand-made groups, one a step: 0 plain, 1 a tree, 2 hostile, 3 long, 4 a controller, 5 turns."""
    root = tmp_path_factory.mktemp("microscope")
    pieces = {"policy": {"ids": np.arange(3, dtype=np.int32), "texts": ("<end>", "4", " five\n")}}
    wrong, right = act(2, 0, reward={"score": 0.0, "brief": 2.0}), act(1, 0, reward={"score": 1.0, "brief": 2.0})
    computed = {"advantage": np.float32([-1, -1]), "policy/log_prob": np.float32([-1, -2]),
                "reference/log_prob": np.float32([-3, -1])}  # fmt: skip
    request = ask("plain")
    samples = [Trajectory(request, (s,), info={"judge": "no four"}) for s in (wrong, right, wrong)]
    plain = make_group(*samples, pieces=pieces, weights={"score": 1.0, "brief": 0.25}, score=0.8,
                       decisions=tuple(({n: x * (1 if s is wrong else -1) if n == "advantage" else x
                                         for n, x in computed.items()},) for s in (wrong, right, wrong)))  # fmt: skip
    ends = act(2, parent=0, reward={"score": 1.0}), act(0, parent=2, reward={"score": 0.0})
    tree = (act(1), ends[0], act(1, 1, parent=0), ends[1])
    evil = replace(act(1, 2), info={"text": MARKUP + "\ud800" + "x" * 10_000_000, "judge": MARKUP * 9000})
    long = act(*([1, 2] * (LONG // 2)), reward={"score": 0.0})
    moves = tuple(
        Step.of(np.float32([i, 0.5]), i % 2, np.float32([-1]), parent=i - 1 if i else None, reward={"task": 1.0})
        for i in range(5)
    )
    turns = tuple(
        replace(act(1, 2, parent=i - 1 if i else None), info={"text": "ab", "observation": f"told {i}"})
        for i in range(3)
    )
    asked = ask("turns", ({"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2="}))
    groups = [
        plain, make_group(Trajectory(ask("tree"), tree), pieces=pieces, weights={"score": 1.0}),
        make_group(Trajectory(ask(MARKUP, MARKUP), (evil,), Status.ERROR)),
        make_group(Trajectory(request, (long,)), pieces=pieces),
        make_group(Trajectory(ask("move"), moves)), make_group(Trajectory(asked, turns)),
    ]  # fmt: skip
    with Store.open(root / "made") as store:
        for step, group in enumerate(groups):
            store.commit(step, metrics={}, rollouts=[group], tree={})
    return Catalogue(root)


def find(kept: Catalogue, step: int) -> dict[str, Any]:
    (found,) = rollouts.list_groups(kept, "made", order="step", step=step)["groups"]
    group = rollouts.open_group(kept, "made", found["id"])
    to_json(group)  # JSON has all of it
    return group


def test_groups_are_listed_with_the_same_problem_elsewhere(kept: Catalogue) -> None:
    found = rollouts.list_groups(kept, "made", order="length", down=True, shortest=2, longest=LONG, limit=2)
    assert (found["total"], found["kept"]) == (6, 6)
    assert [g["step"] for g in found["groups"]] == [3, 5]
    assert rollouts.list_groups(kept, "made", contrast=True, high=0.6)["total"] == 5
    again = rollouts.list_groups(kept, "made", problem=found["groups"][0]["find"], order="step")
    assert [g["step"] for g in again["groups"]] == [0, 3]
    assert [g["step"] for g in rollouts.list_groups(kept, "made", text="four", order="step")["groups"]] == [0]
    (turns,) = rollouts.list_groups(kept, "made", replies=1)["groups"]
    assert (turns["step"], turns["replies"], turns["samples"]) == (5, 3, 1)
    assert found["groups"][0]["prompt"] == find(kept, 3)["problem"]["prompt"][-1]["text"][:90].strip()
    with pytest.raises(Refused, match="no word"):
        rollouts.list_groups(kept, "made", text="+")


def test_a_group_says_what_each_token_is_and_why_it_was_rewarded(kept: Catalogue) -> None:
    group = find(kept, 0)
    wrong, right = group["episodes"]  # the first and the third are alike
    assert wrong["alike"] == [0, 2] and right["alike"] == [1]
    assert wrong["rewards"] == {"score": 0.0, "brief": 2.0} and wrong["weighted"] == {"score": 0.0, "brief": 0.5}
    assert (wrong["outcomes"], right["outcomes"]) == ([0.5], [1.5])
    assert wrong["reasons"]["judge"]["text"] == "no four" and wrong["advantage"] == -1 and right["advantage"] == 1
    (step,) = wrong["steps"]
    assert step["pieces"] == [" five\n", "<end>"] and step["mask"] == [1, 1]
    assert step["numbers"]["logp"] == [-1, -1] and step["numbers"]["version"] == [3, 3]
    assert step["numbers"]["ratio"] == pytest.approx([1, np.exp(-1)], rel=1e-4)
    assert step["numbers"]["kl/reference"] == [2, -1]
    ranges = group["numbers"]
    assert ranges["advantage"] == {"low": -1, "high": 1, "signed": True, "origin": 0, "middle": 1}
    assert ranges["ratio"]["origin"] == 1 and ranges["logp"]["origin"] == ranges["logp"]["high"] == -1
    assert ranges["kl/reference"]["signed"] and not ranges["ratio"]["signed"]


def test_one_outlier_does_not_set_the_scale_of_colours() -> None:
    far = find_ranges([{"advantage": np.array([0.0] * 50 + [0.2] * 4 + [-0.1] * 4 + [-1000.0]), "v": np.arange(5.0)}])
    assert far["advantage"]["middle"] == pytest.approx(0.2) and far["advantage"]["low"] == -1000
    assert (far["v"]["origin"], far["v"]["middle"]) == (0, 2.5)
    assert find_ranges([{"advantage": np.zeros(3)}])["advantage"]["middle"] == 0


def test_a_tree_has_its_shared_steps_once(kept: Catalogue) -> None:
    (episode,) = find(kept, 1)["episodes"]
    assert [s["parent"] for s in episode["steps"]] == [None, 0, 0, 2]
    assert [s["leaves"] for s in episode["steps"]] == [2, 1, 1, 1] and episode["outcomes"] == [1, 0]


def test_hostile_text_is_cut_and_spelt_out(kept: Catalogue) -> None:
    group = find(kept, 2)
    (episode,) = group["episodes"]
    (step,) = episode["steps"]
    said = step["said"]
    assert step["pieces"] is None and episode["status"] == "error"  # of two tokens and ten million characters
    assert said["text"].startswith("<img src=x") and "\\x1b[2J\\u202e\\ud800xxx" in said["text"]
    assert len(said["text"]) < 1.1 * rollouts.CUT and said["left"] + said["next"] == len(MARKUP) + 1 + 10_000_000
    assert len(to_json(group)) < 50_000
    more = rollouts.open_text(kept, "made", group["id"], "said/0/0", said["next"])
    assert more["text"] == "x" * rollouts.MORE and more["left"] == said["left"] - rollouts.MORE
    reason = episode["reasons"]["judge"]
    rest = rollouts.open_text(kept, "made", group["id"], "reason/0/judge", reason["next"])
    assert rest["next"] == reason["next"] + rollouts.MORE
    assert group["problem"]["prompt"][0]["text"] == "".join(c if c.isprintable() else ascii(c)[1:-1] for c in MARKUP)
    for part in ("said/0/9", "said/7/0", "reason/0/nobody", "prompt/4", "nothing", "said/x"):
        with pytest.raises(Refused):
            rollouts.open_text(kept, "made", group["id"], part)


def test_of_a_long_answer_the_first_tokens_come_and_more_when_asked(kept: Catalogue) -> None:
    group = find(kept, 3)
    (step,) = group["episodes"][0]["steps"]
    assert step["total"] == LONG and len(step["pieces"]) == len(step["mask"]) == rollouts.TOKENS
    more = rollouts.open_tokens(kept, "made", group["id"], 0, 0, offset=LONG - 3)
    assert more["pieces"] == [" five\n", "4", " five\n"] and more["numbers"]["logp"] == [-1] * 3
    with pytest.raises(Refused, match="episode 4"):
        rollouts.open_tokens(kept, "made", group["id"], 4, 0)


def test_a_controller_is_told_as_curves(kept: Catalogue) -> None:
    (episode,) = find(kept, 4)["episodes"]
    track = episode["track"]
    assert track["length"] == 5 and track["at"] == [0, 1, 2, 3, 4] and not episode["steps"]
    assert track["curves"]["observation 0"] == [0, 1, 2, 3, 4] and track["curves"]["action"] == [0, 1, 0, 1, 0]
    assert track["curves"]["reward task"] == [1] * 5 and track["curves"]["logp"] == [-1] * 5


def test_of_a_denoised_decision_the_chain_is_told() -> None:
    chain, made = np.float32([[0, 1], [2, 3], [4, 5]]), np.float32([6, 7])
    step = Step.of(np.zeros(1, np.float32), made, np.float32([-1, -2, -3]), 3, info={"chain": chain})
    numbers = {"logp": np.array([-1.0, -2.0, np.nan]), "advantage": np.ones(3), "other": np.ones(1)}
    assert unroll(step, numbers) == {"point 0": [0, 2, 4, 6], "point 1": [1, 3, 5, 7], "logp": [-1, -2, None]}
    assert "v" not in unroll(step, {"v": np.full(3, np.nan)})
    for bad in (None, "x" * 9, np.zeros(3), np.array([["a"]]), np.zeros((0, 2)), [[1, 2]]):
        assert unroll(replace(step, info={"chain": bad}), numbers) == {}
    sampled = Trajectory(ask("noise"), (step,))
    track = rollouts._track(sampled, [numbers])
    assert track["length"] == 1 and track["chains"] == [unroll(step, numbers)]


def test_turns_have_roles_and_what_was_answered(kept: Catalogue) -> None:
    group = find(kept, 5)
    (episode,) = group["episodes"]
    assert [t["role"] for t in group["problem"]["prompt"]] == ["system", "user"]
    assert [s["told"]["text"] for s in episode["steps"]] == ["told 0", "told 1", "told 2"]
    assert [s["pieces"] for s in episode["steps"]] == [["a", "b"]] * 3  # an older run: as many characters as tokens


def test_through_the_app(ask: Callable[..., Any]) -> None:
    """A real run: pieces make the text again, and the sum of a group's rewards is what was trained on."""
    found = ask("rollouts?run=sums/0&order=score")["groups"]
    group = ask(f"group?run=sums/0&id={found[0]['id']}")
    for episode in group["episodes"]:
        (step,) = episode["steps"]
        assert step["total"] == len(step["pieces"]) == len(step["numbers"]["logp"])
        assert episode["outcomes"] == [pytest.approx(sum(episode["weighted"].values()))]
    samples = [e["outcomes"][0] for e in group["episodes"] for _ in e["alike"]]
    assert np.mean(samples) == pytest.approx(found[0]["score"])
    assert "<img" in str(ask(f"group?run=hostile&id={ask('rollouts?run=hostile')['groups'][0]['id']}"))
    ask("group?run=sums/0&id=99999", status=422)
    ask("group?run=outside&id=1", status=404)
    ask("rollouts?run=sums/0&order=scores", status=400)
