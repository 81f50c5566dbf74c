"""An update made again: it is the run's own, number for number and weight for weight, and settings change what algebra
says they do."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from shuhari.config.recipe import RecipeError, load
from shuhari.desk.replay.steps import change_recipe, find_state
from shuhari.desk.replay.update import GradientRecorder, UpdateResult, find_start, make_update, open_at
from shuhari.desk.replay.what_if import _list_cosines, what_if
from shuhari.loop.run import train
from shuhari.store import Run
from small_runs import DQN, GRIDWORLD, TEXT, write_sums

KEPT = '\n[store]\nevery = 1\nkeep = 40\ngroups = ["all"]\n'
SEVENS = '[reward.sevens]\nuse = "graders.py:sevens"\n'
SUMS = write_sums(3, 4).replace("[part.policy]\n", "[part.policy]\nepochs = 2\nminibatches = 2\n") + SEVENS
REPLAYED = SUMS.replace(
    "[buffer]\nsize = 4\n",
    """[buffer]
use = "mixture"
buffers.new = {use = "fresh", size = 4}
buffers.old = {use = "groups", size = 2, high = 0.99, low = 0.01}
""",
)
POLE = """# PPO on whole episodes: a critic, whose values are asked at each draw
steps = 3
[task]
name = "gym/CartPole-v1"
[models.policy]
use = "categorical"
hidden = [16]
normalise = true
[models.critic]
use = "value"
hidden = [16]
[rollout]
use = "episode"
n = 2
max_steps = 12
[buffer]
size = 3
[transform.gae]
scale = "batch"
[part.policy]
epochs = 2
minibatches = 2
terms.loss = {use = "clip"}
terms.entropy = {weight = 0.01}
optimiser.lr = 3e-2
[part.critic]
terms.value = {}
optimiser.lr = 1e-2
"""
ROUNDS = SUMS.replace("[collect.advantage]\n", '[collect.drop_uniform_groups]\n[collect.advantage]\nscale = "batch"\n')
RECIPES = {"sums": SUMS, "rounds": ROUNDS, "replayed": REPLAYED, "text": TEXT, "grid": GRIDWORLD, "pole": POLE}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("what-if")
    graders = 'def sevens(completions, **columns):\n    return [float("7" in c) for c in completions]\n'
    (home / "graders.py").write_text(graders)
    return home


@pytest.fixture(scope="module")
def run(home: Path):
    """name -> the path of a run of that recipe, which keeps all groups and every checkpoint."""

    @cache
    def make(name: str) -> str:
        (home / f"{name}.toml").write_text(RECIPES[name] + KEPT)
        list(train(load(home / f"{name}.toml"), home / name))
        return str(home / name)

    return make


def check_reported(found: dict, numbers: list[str]) -> None:
    """Every number that the run reported of the update is there, and the same."""
    assert set(numbers) <= found["reported"].keys() and found["notes"] == []
    for name, x in found["reported"].items():
        assert found["configured"]["numbers"][name] == pytest.approx(x, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("step", [1, 3])
def test_the_update_is_the_runs_own(run, step: int) -> None:
    """Two epochs of two minibatches, so that ratios and clipping are at work; the first begins from fresh weights."""
    found = what_if(f"{run('sums')}@{step}")
    check_reported(found, ["policy/loss/clip", "policy/grad_norm", "policy/clip_fraction", "policy/approx_kl"])
    assert found["reported"]["policy/clip_fraction"] > 0 and found["reported"]["policy/grad_norm"] > 0
    assert found["batch"] == {"groups": 4, "of": 4, "whole": True, "episodes": 16, "rounds": 1}
    assert found["weights"] == {"step": step - 1, "between": 0} and found["changed"] is None
    assert found["configured"]["after"]["gap"] < 1e-5
    json.dumps(found, allow_nan=False)


def test_advantages_are_those_that_the_run_stored(run) -> None:
    path = run("sums")
    found = what_if(f"{path}@2")
    for group, kept in zip(found["groups"], Run(path).rollouts(2), strict=True):
        assert group["group"] == kept["group"]
        for episode, steps in zip(group["episodes"], kept["decisions"], strict=True):
            own = [x for s in steps for x in s["advantage"].tolist() if not math.isnan(x)]
            assert episode["advantage"] == [pytest.approx(own[0], abs=1e-6)] if own else [None]


def test_the_weights_after_it_are_those_of_the_next_checkpoint(run) -> None:
    stored = Run(run("sums"))
    before, after = (stored.load(step)["models"]["policy"] for step in (1, 2))
    state = find_state(stored.metrics(), 2)
    with open_at(stored.path, load(stored.path), state, find_start(stored, state)) as (opened, _, _):
        made = make_update(opened, stored.rollouts(2), exact=True)
        now = opened.ctx.models["policy"].module.state_dict()
        assert all(torch.equal(now[k], after[k]) for k in after)
        names = [n for n, _ in opened.ctx.models["policy"].module.named_parameters()]
    moved = torch.cat([(after[n] - before[n]).reshape(-1) for n in names])
    assert torch.allclose(made.moved["policy"], moved, atol=1e-7) and float(moved.norm()) > 0


@pytest.mark.parametrize("step", [13, 16])
def test_of_a_later_stage(run, step: int) -> None:
    """Its first step begins from the end of the warm-up, when the reference comes to life."""
    found = what_if(f"{run('text')}@{step}")
    assert found["stage"] == "rl"
    check_reported(found, ["policy/loss/clip", "policy/loss/divergence", "policy/grad_norm", "policy/lr"])


@pytest.mark.parametrize("name", ["rounds", "grid"])
def test_of_several_rounds_of_collection(run, name: str) -> None:
    """Dynamic sampling asks again, and what is scaled over the batch is scaled round by round."""
    columns = Run(run(name)).metrics()
    step = max(columns["step"], key=lambda s: columns["rollout/rounds"][s - 1])
    assert columns["rollout/rounds"][step - 1] > 1
    found = what_if(f"{run(name)}@{step}")
    check_reported(found, ["policy/loss/clip", "policy/grad_norm"])
    assert found["batch"]["rounds"] == columns["rollout/rounds"][step - 1]


def test_of_control(run) -> None:
    found = what_if(f"{run('pole')}@3")
    names = ["policy/loss/clip", "policy/loss/entropy", "policy/clip_fraction", "critic/loss/value", "critic/grad_norm"]
    check_reported(found, names)
    assert found["configured"]["advantage"]["std"] == pytest.approx(1, abs=0.05)  # scale = "batch"


def test_of_replay_whose_memory_is_known(run, home: Path) -> None:
    path = run("replayed")
    found = what_if(f"{path}@3")
    check_reported(found, ["policy/loss/clip", "policy/grad_norm"])
    assert found["reported"]["policy/rows"] > 16  # rows of earlier steps are among them
    (home / "few.toml").write_text(REPLAYED + KEPT.replace('groups = ["all"]', "rollouts = 2"))
    list(train(load(home / "few.toml"), home / "few"))
    with pytest.raises(ValueError, match="rows that learner 'main' draws are replayed or recorded"):
        what_if(f"{home / 'few'}@3")


def test_twice_the_loss_is_twice_the_gradient(run) -> None:
    """At a rate of 0, where no minibatch sees what another has moved."""
    first = what_if(f"{run('sums')}@1", ["part.policy.terms.loss.weight=2", "part.policy.optimiser.lr=0"])
    still = what_if(f"{run('sums')}@1", ["part.policy.optimiser.lr=0"])
    twice, once = (x["changed"]["numbers"] for x in (first, still))
    assert twice["policy/grad_norm"] == pytest.approx(2 * once["policy/grad_norm"], rel=1e-5)
    assert twice["policy/loss/clip"] == pytest.approx(once["policy/loss/clip"], rel=1e-5)  # before its weight
    assert first["changed"]["after"]["kl"] == pytest.approx(0, abs=1e-6)
    assert first["changed"]["after"]["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert first["cosine"]["policy"]["moved"] is None


def test_the_opposite_loss_has_the_opposite_gradient(run) -> None:
    stored, results = Run(run("sums")), []
    state = find_state(stored.metrics(), 1)
    for weight in (1, -1):  # without a rate, so that all minibatches of both see the same weights
        sets = [f"part.policy.terms.loss.weight={weight}", "part.policy.optimiser.lr=0"]
        recipe, _ = change_recipe(load(stored.path), sets)
        with open_at(stored.path, recipe, state, 0) as (opened, _, _):
            results.append(make_update(opened, stored.rollouts(1), exact=True))
    assert torch.allclose(results[1].gradient["policy"], -results[0].gradient["policy"], atol=1e-7)
    assert _list_cosines(*results)["policy"] == {"gradient": pytest.approx(-1, abs=1e-6), "moved": None}


def test_cosines_by_hand() -> None:
    old, new = (
        UpdateResult({}, torch.zeros(0), {}, {"policy": torch.tensor(g), "other": torch.ones(n)},
                     {"policy": torch.tensor(moved)}, [], [], 0)
        for g, moved, n in (([3.0, 4.0], [1.0, 0.0], 1), ([4.0, 3.0], [0.0, 0.0], 2))
    )  # fmt: skip
    assert _list_cosines(old, new) == {"policy": {"gradient": pytest.approx(24 / 25), "moved": None}}


class Loss:
    """g'x of two parameters, as two terms, which are g in sum; g doubles with each step."""

    def __init__(self) -> None:
        self.params, self.g = [torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(2))], torch.ones(3)

    def backward(self) -> dict[str, float]:
        self.params[0].grad, self.params[1].grad = self.g[:1].clone(), self.g[1:].clone()
        return {}

    def gradients(self) -> dict[str, torch.Tensor]:
        return {"one": 0.25 * self.g, "other": 0.75 * self.g}


@pytest.mark.parametrize("asks", [["backward"], ["gradients"], ["backward", "gradients"], ["gradients"] * 2])
def test_the_gradient_of_a_step_counts_once_however_an_optimiser_asks(asks: list[str]) -> None:
    class Optimiser:
        def step(self, evaluate, at: float) -> dict[str, float]:
            for name in asks:
                getattr(evaluate, name)()
            return {}

    loss, recorder = Loss(), GradientRecorder(Optimiser())
    for _ in range(2):
        recorder.step(loss, 0.0)
        loss.g = 2 * loss.g
    assert recorder.gradient.tolist() == [3.0, 3.0, 3.0]


def test_a_stage_that_the_recipe_has_not_is_named(run) -> None:
    stored = Run(run("text"))
    state = replace(find_state(stored.metrics(), 16), stage="rk")
    with (
        pytest.raises(ValueError, match="the recipe has no stage 'rk'; known: rl, warm-up"),
        open_at(stored.path, load(stored.path), state, 15),
    ):
        pass


def test_weights_of_rewards_and_transforms(run) -> None:
    """Without a scale, thrice the reward is thrice the advantage; the batch and its grades stay."""
    plain = what_if(f"{run('sums')}@2", ["collect.advantage.scale=none"])
    thrice = what_if(f"{run('sums')}@2", ["collect.advantage.scale=none", "reward.weights.sevens=3"])
    for one, three in zip(plain["groups"], thrice["groups"], strict=True):
        for a, b in zip(one["episodes"], three["episodes"], strict=True):
            assert b["advantage"][1] == pytest.approx(3 * a["advantage"][1]) and b["reward"] == [
                a["reward"][0], 3 * a["reward"][0],
            ]  # fmt: skip
            assert a["advantage"][1] == pytest.approx(a["reward"][0] - sum(e["reward"][0] for e in one["episodes"]) / 4)
    assert plain["configured"] == thrice["configured"]


def test_a_wider_clip_clips_less(run) -> None:
    found = what_if(f"{run('sums')}@3", ["part.policy.terms.loss.high=inf", "part.policy.terms.loss.low=inf"])
    assert found["changed"]["numbers"]["policy/clip_fraction"] == 0
    same = what_if(f"{run('sums')}@3", ["part.policy.terms.loss.high=0.2"])
    assert same["changed"] == same["configured"] and same["cosine"]["policy"]["gradient"] == pytest.approx(1)
    assert "do not change these gradients" in same["notes"][0]


def test_another_optimiser_begins_without_memory(run) -> None:
    found = what_if(f"{run('sums')}@3", ["part.policy.optimiser.use=rmsprop"])
    assert any("optimiser is another component" in note for note in found["notes"])


def test_a_part_of_the_groups_and_older_weights(home: Path) -> None:
    (home / "some.toml").write_text(SUMS + "\n[store]\nevery = 100\nkeep = 1\nrollouts = 1\n")
    list(train(load(home / "some.toml"), home / "some"))
    found = what_if(f"{home / 'some'}@3")
    assert found["batch"] == {"groups": 1, "of": 4, "whole": False, "episodes": 4, "rounds": 1}
    assert found["weights"] == {"step": 0, "between": 2} and found["configured"]["after"]["gap"] > 1e-3
    assert "1 of 4 groups" in found["notes"][0] and "2 updates before" in found["notes"][1]
    assert found["configured"]["numbers"]["policy/rows"] == 4 and found["configured"]["numbers"]["policy/lr"] == 0.01


@pytest.mark.parametrize(
    ("given", "sets", "message"),
    [
        ("sums@9", [], "no step 9: it has made steps 1 to 3"),
        ("sums", [], "expected RUN@STEP"),
        ("sums@2", ["part.policy.terms.loss.hgih=1"], "did you mean 'high'"),
        ("sums@2", ["part.policy.terms.klip.high=1"], "part.policy.terms.klip"),
        ("sums@2", ["rollout.n=8"], "the batch is stored"),
        ("sums@2", ["buffer.size=8"], "the batch is stored"),
        ("sums@2", ["models.policy.hidden=8"], "the models come from the checkpoint"),
        ("sums@2", ["reward.sevens.timeout=1"], "applies another grader"),
        ("text@3", [], "learns from recorded data, and nothing is sampled"),
    ],
)
def test_mistakes(run, given: str, sets: list[str], message: str) -> None:
    name, at, step = given.partition("@")
    with pytest.raises(ValueError, match=message):
        what_if(f"{run(name)}{at}{step}", sets)


def test_lanes_and_replay_cannot_be_made_again(home: Path) -> None:
    (home / "dqn.toml").write_text(DQN)
    list(train(load(home / "dqn.toml", ["steps=3"]), home / "dqn"))
    with pytest.raises(ValueError, match="stepped in lanes, which form no groups"):
        what_if(f"{home / 'dqn'}@3")


def test_nothing_is_written(run) -> None:
    path = Path(run("sums"))
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and not f.name.endswith(("-wal", "-shm"))}
    what_if(f"{path}@2", ["part.policy.terms.loss.high=0.4"])
    assert all(f.read_bytes() == x for f, x in before.items())


def test_an_error_of_a_recipe_is_one(run) -> None:
    with pytest.raises(RecipeError, match="rollot"):
        what_if(f"{run('sums')}@2", ["rollot.n=8"])
