"""From Python: train, read the metrics, load the policy and act; a method of a user's own, from its example file."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import shuhari
from shuhari.config import recipe
from shuhari.config.overlay import RecipeError
from shuhari.data import ContractError
from shuhari.desk.api import default_path
from shuhari.kernel import registry
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.context import Context
from shuhari.models.text.causal import Causal
from shuhari.store import Run, StoreError

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {"buffer.size": 64, "rollout.lanes": 2, "part.policy.minibatches": 2, "evaluate.n": 2}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_then_load_and_act() -> None:
    seen = []
    run = shuhari.train("baselines/ppo_cartpole", steps=2, progress=seen.append, **TINY)
    assert run.metrics["step"] == [1, 2]
    assert len(seen) == len(run.reports) == 2
    assert run.metrics["policy/loss/clip"][1] == pytest.approx(seen[1]["policy/loss/clip"])
    assert run.summary["after"]["greedy"] > 0
    policy = shuhari.load(run.path)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy.act(observation))
    assert policy.act(np.stack([observation] * 3)).shape == (3,)
    assert policy.act(observation) == run.policy.act(observation)
    action, state = policy.predict(observation, deterministic=True)  # as Stable-Baselines3 calls it
    assert state is None and action.shape == () and action == policy.act(observation)
    drawn = [policy.predict(np.stack([observation] * 200), state=None, episode_start=np.ones(200))[0] for _ in range(2)]
    assert drawn[0].shape == (200,) and set(drawn[0]) == {0, 1} and (drawn[0] != drawn[1]).any()
    env.step(action)


def test_a_checkpoint_is_loaded_by_its_step_and_the_best_by_that_word() -> None:
    kept = {"evaluate": {"n": 2, "every": 1}, "store": {"every": 1, "keep": 9}}
    path = shuhari.train("baselines/bandit", steps=3, **kept).path
    logits = [shuhari.load(path, step=step).model.module.state_dict() for step in (1, 2, 3)]
    best = max((c for c in Run(path).checkpoints() if c["score"] is not None), key=lambda c: c["score"])["step"]
    for name, step in ((f"{path}@2", 2), (f"{path}@best", best), (path, 3)):
        found = shuhari.load(name).model.module.state_dict()
        assert [all(torch.equal(found[k], w[k]) for k in w) for w in logits] == [step == i for i in (1, 2, 3)]
    with pytest.raises(StoreError, match="no checkpoint of step 7"):
        shuhari.load(f"{path}@7")


def test_an_observation_that_is_not_of_the_space_is_named() -> None:
    policy = shuhari.train("baselines/ppo_cartpole", steps=1, **TINY).policy
    for wrong, shape in (([1, 0, 0], r"\(3,\)"), (np.zeros((2, 3)), r"\(2, 3\)"), (1.0, r"\(\)")):
        with pytest.raises(ValueError, match=rf"of shape {shape}: expected \(4,\), or \(n, 4\) for a batch of n"):
            policy.act(wrong)
        with pytest.raises(ValueError, match=rf"of shape {shape}"):
            policy.predict(wrong)
    with pytest.raises(ValueError, match="some are NaN"):
        policy.act(np.array([0.0, np.nan, 0.0, 0.0]))
    with pytest.raises(ValueError, match=r"reset\(\) returns \(observation, info\)"):
        policy.predict(gymnasium.make("CartPole-v1").reset())


def test_the_same_call_finds_the_complete_run(caplog: pytest.LogCaptureFixture) -> None:
    first = shuhari.train("baselines/bandit", steps=2)
    assert "is complete" not in caplog.text
    again = shuhari.train("baselines/bandit", steps=2)
    assert again.path == first.path and f"{first.path} is complete: nothing was trained" in caplog.text
    assert again.metrics == first.metrics


def test_another_recipe_in_the_same_folder_is_refused() -> None:
    shuhari.train("baselines/bandit", "here", steps=2)
    with pytest.raises(RecipeError, match="another recipe"):
        shuhari.train("baselines/bandit", "here", steps=2, seed=1)


def test_default_folders_tell_settings_and_seeds_apart() -> None:
    plain = recipe.load("baselines/bandit")
    assert default_path(plain) == Path("runs/bandit-s0")
    assert default_path(plain.with_settings({"seed": 3})) == Path("runs/bandit-s3")
    other = default_path(plain.with_settings({"steps": 7}))
    assert other.name.startswith("bandit-s0-")
    assert other == default_path(plain.with_settings({"steps": 7}))


def test_a_run_starts_from_anothers_weights() -> None:
    first = shuhari.train("baselines/bandit", "first", steps=3)
    second = shuhari.train("baselines/bandit", "second", init="first@3", steps=1, **{"part.policy.optimiser.lr": 1e-12})
    np.testing.assert_allclose(*(r.policy.model.module.state_dict()["logits"] for r in (first, second)), atol=1e-6)


def test_where_a_run_started_belongs_to_it() -> None:
    """Given again it goes on; another origin is refused, and has a default folder of its own."""
    for name, seed in (("first", 0), ("other", 1)):
        shuhari.train("baselines/bandit", name, seed=seed, steps=2)
    begun = shuhari.train("baselines/bandit", "run", init="first@2", steps=3)
    assert Run("run").get("init") == "first@2"
    for same in ("first@2", ""):
        assert shuhari.train("baselines/bandit", "run", init=same, steps=3).metrics == begun.metrics
    with pytest.raises(RecipeError, match="started from the weights of first@2, not of other@2"):
        shuhari.train("baselines/bandit", "run", init="other@2", steps=3)
    with pytest.raises(RecipeError, match="first holds a run that started from fresh weights, not of other"):
        shuhari.train("baselines/bandit", "first", init="other", seed=0, steps=2)
    plain = recipe.load("baselines/bandit")
    folders = {default_path(plain, init=i) for i in ("", "first", "other")}
    assert len(folders) == 3 and default_path(plain) in folders
    assert (
        shuhari.train("baselines/bandit", init="other", steps=2).path != shuhari.train("baselines/bandit", steps=2).path
    )


ROWS = [{"prompt": f"{i} {letter}: ", "letter": letter} for i in range(20) for letter in "ab"]
TEXT = {
    "models.policy": {"use": "causal", "hidden": 8, "layers": 1, "heads": 1, "intermediate": 8},
    "rollout": {"n": 2, "sampling": {"max_new": 4}},
    "buffer.size": 2,
    "evaluate": {"n": 2, "samples": 1, "every": 0},
    "remove": ["stage.warm-up"],
    "stage.rl.steps": 2,
}


def share(completions: list[str], letter: list[str], **columns: Any) -> list[float]:
    return [text.count(wanted) / 4 for text, wanted in zip(completions, letter, strict=True)]


def test_rows_and_a_reward_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run is handed stands in its folder and its recipe: in another folder it is the same run, bit for bit, and
    goes on or is loaded from there, wherever that is moved."""
    run = shuhari.train("baselines/grpo", "first", dataset=ROWS, reward=share, **TEXT)
    assert 0 <= run.metrics["reward/share"][-1] <= 1
    assert {group["step"] for group in run.rollouts()} == {2} and run.rollouts(step=1)
    found = run.evaluate(samples=2)
    assert found["greedy"] == run.summary["after"]["greedy"] and 0 <= found["mean"] <= 1
    assert run.evaluate(step=2, n=1).keys() == run.evaluate(n=1).keys()
    assert len(list(Path("first").glob("dataset-*.jsonl"))) == 1
    again = shuhari.train("baselines/grpo", "deep/second", dataset=ROWS, reward=share, **TEXT)
    assert {k: v for k, v in again.metrics.items() if k != "wall"} == {
        k: v for k, v in run.metrics.items() if k != "wall"
    }
    with pytest.raises(RecipeError, match=r"another recipe \(task.name: file/dataset-"):
        shuhari.train("baselines/grpo", "first", dataset=ROWS[:30], reward=share, **TEXT)
    assert len(list(Path("first").glob("dataset-*.jsonl"))) == 1
    Path("first").rename("moved")
    monkeypatch.chdir(tmp_path / "deep")
    assert shuhari.load("../moved").generate(["1 a: "]) == run_text(again)
    assert shuhari.train("../moved").metrics == run.metrics


def run_text(run: shuhari.Trained) -> Any:
    return shuhari.load(Path("second")).generate(["1 a: "])


def test_a_reward_that_nothing_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains, goes on where it is handed over again, and is loaded without; without it a run does not go on."""
    run = shuhari.train(
        "baselines/grpo", dataset=ROWS, reward=lambda completions: [len(c) for c in completions], **TEXT
    )
    text = run.policy.generate("1 a: ")
    monkeypatch.setattr(registry, "_HELD", {})  # as in another process
    assert shuhari.load(run.path).generate("1 a: ") == text
    with pytest.raises(RecipeError, match=r"reward.own.use: the reward 'lambda-\w+' was handed to shuhari.train as an"):
        shuhari.train(run.path)
    again = shuhari.train(
        "baselines/grpo", dataset=ROWS, reward=lambda completions: [len(c) for c in completions], **TEXT
    )
    assert again.path == run.path and again.metrics == run.metrics


def test_tools_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy is loaded without the tools that it was trained with; a run does not go on without them."""

    def price(item: str) -> int:
        """Look a price up."""
        return len(item)

    told = {**TEXT, "stage.rl.steps": 1, "rollout.environments.describe": False, "rollout.max_steps": 2}
    run = shuhari.train("baselines/grpo", dataset=ROWS, reward=share, tools=[price], **told)
    assert run.summary["after"]["greedy.tool_calls"] == 0.0
    text = run.policy.generate("1 a: ")
    monkeypatch.setattr(registry, "_HELD", {})
    assert shuhari.load(run.path).generate("1 a: ") == text
    with pytest.raises(RecipeError, match=r"the tool 'price-\w+' was handed to shuhari.train as an object"):
        shuhari.train(run.path)
    with pytest.raises(RecipeError, match=r"tools: the argument 'n' of the tool 'count' has no annotation"):
        shuhari.train("baselines/grpo", dataset=ROWS, reward=share, tools=[count], **TEXT)


def count(n):  # type: ignore[no-untyped-def]
    """Count."""


def test_a_reward_that_returns_nonsense_is_named() -> None:
    with pytest.raises(ContractError, match=r"reward 'own' .*expected a list of \d, a number or None for each sample"):
        shuhari.train("baselines/grpo", dataset=ROWS, reward=lambda completions: 1.0, **TEXT)


class Hall(gymnasium.Env[Any, Any]):
    """Two places, an episode of three steps; action 1 earns."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return np.array([1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return np.array([0, 1], np.float32), float(action), self.at == 3, False, {}


def test_environments_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**TINY, "steps": 1}
    runs = [
        shuhari.train("baselines/ppo_cartpole", env=env, **small)
        for env in (Hall, Hall(), lambda: gymnasium.wrappers.TimeLimit(Hall(), 2))
    ]
    assert len({run.path for run in runs}) == 3
    assert [run.summary["after"]["length"] for run in runs] == [3, 3, 2]
    for env in (Hall, Hall(), lambda: Hall()):
        assert runs[2].policy.evaluate(env, n=2)["length"] == 3
    shuhari.testing.check_environment(Hall)
    monkeypatch.setattr(registry, "_HELD", {})
    with pytest.raises(RecipeError, match=r"was handed to shuhari\.train as an object"):
        shuhari.load(runs[1].path)
    assert shuhari.load(runs[1].path, env=Hall()).act([1, 0]) == runs[1].policy.act([1, 0])


def test_progress_is_printed_where_a_person_looks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(seed: int, **how: Any) -> str:
        shuhari.train("baselines/bandit", seed=seed, steps=1, **how)
        return capsys.readouterr().out

    assert printed(0) == "" != printed(1, progress=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "baselines/bandit  seed 2" in printed(2)
    assert printed(3, progress=False) == "" == printed(4, progress=lambda report: None)


def test_who_looks_on_ends_no_run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    seen: list[int] = []

    def full(report: Any) -> None:
        seen.append(report["step"])
        raise OSError("the disk is full")

    board = shuhari.TensorBoard(tmp_path / "logs")
    run = shuhari.train("baselines/bandit", steps=3, observe=[full, board])
    assert run.metrics["step"] == [1, 2, 3] and seen == [1]
    assert "step 1: full is called no more: OSError: the disk is full" in caplog.text
    (file,) = (tmp_path / "logs").iterdir()
    assert file.read_bytes().count(b"reward/mean") == 3


def test_what_there_is_can_be_listed() -> None:
    assert {"train", "load", "export", "session", "Sampling"} <= set(dir(shuhari))
    assert all(getattr(shuhari, name) is not None for name in shuhari.__all__)


def test_loading_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    path = shuhari.train("baselines/bandit", steps=1, threads=2).path
    assert torch.get_num_threads() == 1
    contexts = []
    made = Context.__init__

    def watched(self: Context, *args: Any, **more: Any) -> None:
        contexts.append(self)
        made(self, *args, **more)

    monkeypatch.setattr(Context, "__init__", watched)
    shuhari.load(path)
    with pytest.raises(StoreError):
        shuhari.load(path, step=99)
    assert torch.get_num_threads() == 1
    assert len(contexts) == 1  # a checkpoint that is not there is found before anything is made
    assert all(c.eventloop.made is None or c.eventloop.made.is_closed() for c in contexts)


def test_a_language_model_generates() -> None:
    tiny = {"models.policy.hidden": 12, "models.policy.layers": 1, "buffer.size": 8, "evaluate.n": 2}
    run = shuhari.train("baselines/sft_arithmetic", steps=1, **tiny)
    policy = run.policy
    assert isinstance(policy.generate("12+34="), str)
    assert len(policy.generate(["12+34=", "1+1="], max_new=2)) == 2
    for name, meant in (("max_new_tokens", "it is max_new here"), ("num_return_sequences", "greedy=False"),
                        ("colour", "expected greedy and max_new")):  # fmt: skip
        with pytest.raises(TypeError, match=f"generate takes no '{name}': .*{meant}"):
            policy.generate("1+1=", **{name: 2})
    drawn = [shuhari.load(run.path, seed=s).generate("12+34=", greedy=False) for s in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    again = Causal(path=str(policy.save(Path("exported"))))
    again.build(None)
    (row,) = again.sample(
        [again.encode("12+34=")], replace(policy.sampling, greedy=True), noise=CounterNoise(keys(0, n=1))
    )
    assert again.decode(row.action) == policy.generate("12+34=")


def test_a_controller_has_no_format_of_its_own() -> None:
    run = shuhari.train("baselines/bandit", steps=1)
    with pytest.raises(TypeError, match="no format outside of its run"):
        run.policy.save("exported")


def test_the_example_of_a_method_of_ones_own() -> None:
    example = runpy.run_path(str(EXAMPLES / "own_method.py"))
    run = example["main"](steps=2, **TINY)
    assert "policy/loss/spo" in run.metrics
    assert "policy/loss/clip" not in run.metrics
    assert shuhari.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_errors_of_a_mistake_are_caught_by_their_public_names(tmp_path: Path) -> None:
    with pytest.raises(shuhari.RecipeError, match="did you mean"):
        shuhari.train("baselines/bandit", tmp_path / "run", stepz=3)
    with pytest.raises(shuhari.NoRunError, match="not a run"):
        shuhari.load(tmp_path)
    assert issubclass(shuhari.NoRunError, shuhari.StoreError)
