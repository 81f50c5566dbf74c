"""The four calls: against the loop that recipes run, against hand-made gradients, and stopped and gone on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

import shuhari
from shuhari import Problem, Sampling, Term
from shuhari.buffers.demos import Demos
from shuhari.config.overlay import RecipeError
from shuhari.loop.sessions import Session
from shuhari.models.text.causal import Causal
from shuhari.objectives.clip import Clip
from shuhari.objectives.likelihood import Nll
from shuhari.optimisers.adamw import AdamW
from shuhari.transforms.advantage import Advantage

TINY = {"use": "causal", "architecture": "gpt2", "hidden": 16, "layers": 1, "heads": 2, "context": 64}
SUMS = {"name": "arithmetic", "kind": "carry", "forget": 0.7}


class Small:
    """Small token ids are better: a reward in which the answers of an untrained model differ."""

    async def grade(self, group: Any, ctx: Any) -> list[dict[str, float]]:
        return [{"small": -float(t.steps[-1].action.sum())} for t in group]


def open_session(**settings: Any) -> Session:
    given: dict[str, Any] = {"task": SUMS, "sampling": Sampling(max_new=4), "seed": 3, "rewards": {"small": Small()}}
    given |= settings
    return shuhari.session(given.pop("model", TINY), **given)


def one_step(s: Session, lr: float = 1e-2) -> dict[str, Any]:
    batch = s.transform(s.sample(4, n=4), Advantage(centre="none", scale="none"))
    s.forward_backward(batch, [Term(Clip())])
    return dict(s.optim_step(lr))


def parameters(s: Session) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in s.models["policy"].module.parameters()])


def test_two_backward_calls_add_up_to_the_sum_of_their_gradients():
    lr = 0.5
    with open_session(optimiser=AdamW(betas=(0.0, 0.0), eps=1.0)) as s:
        (batch,) = Demos(size=6).draw(s.ctx)
        policy = s.models["policy"].module
        want = []
        for rows in (batch.take(torch.arange(2)), batch.take(torch.arange(2, 6))):
            d = s.models["policy"](rows).log_prob()
            loss = -(d * rows["mask"]).sum() / rows["mask"].sum()
            want.append(torch.autograd.grad(loss, list(policy.parameters())))
            told = s.forward_backward(rows, [Term(Nll(), stream="ce")])
            assert told["loss/nll"] == pytest.approx(float(loss.detach()), rel=1e-5)
        before = parameters(s)
        info = s.optim_step(lr)
        g = torch.cat([(a + b).flatten() for a, b in zip(*want, strict=True)])
        # with both moments forgetting at once Adam's step is lr g / (|g| + eps)
        torch.testing.assert_close(parameters(s), before - lr * g / (g.abs() + 1.0), atol=1e-6, rtol=1e-5)
        assert info["grad_norm"] == pytest.approx(float(g.norm()), rel=1e-4)


def test_an_optimiser_step_forgets_the_gradient():
    with open_session() as s:
        one_step(s)
        with pytest.raises(RuntimeError, match="call forward_backward first"):
            s.optim_step()


def test_the_same_calls_give_the_same_bits_and_a_saved_state_goes_on_with_them(tmp_path: Path):
    with open_session() as whole:
        for _ in range(4):
            one_step(whole)
    with open_session() as first:
        for _ in range(2):
            one_step(first)
        first.save_state(tmp_path / "state")
        one_step(first)
        first.save_state(tmp_path / "later")
    with open_session() as second:
        second.load_state(tmp_path / "state")
        for _ in range(2):
            one_step(second)
        assert torch.equal(parameters(whole), parameters(second))
        assert second.ctx.ledger == whole.ctx.ledger
    with open_session() as third:
        third.load_state(tmp_path / "later")
        one_step(third)
        assert torch.equal(parameters(whole), parameters(third))
        third.save_state(tmp_path / "later")  # in the place of the one before
        third.load_state(tmp_path / "later")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["later", "state"]


def test_a_state_is_neither_saved_over_other_files_nor_in_the_middle_of_a_step(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with open_session() as s:
        s.save_state(tmp_path / "state")
        (tmp_path / "state" / "thesis.tex").write_text("also beside a state")
        for name in ("mine", "state"):
            with pytest.raises(FileExistsError, match=r"thesis\.tex"):
                s.save_state(tmp_path / name)
            assert (tmp_path / name / "thesis.tex").exists()
        (tmp_path / "state" / "thesis.tex").unlink()
        (tmp_path / "state" / "written.json").unlink()  # as before there were manifests
        s.save_state(tmp_path / "state")
        s.forward_backward(next(Demos(size=2).draw(s.ctx)), [Term(Nll(), stream="ce")])
        with pytest.raises(RuntimeError, match="optim_step"):
            s.save_state(tmp_path / "new")


def test_prompts_of_ones_own_with_a_grader_of_ones_own():
    with open_session(task=None, weights={"small": 0.5}) as s:
        batch = s.sample(["1+1=", {"prompt": "2+2=", "answer": "4"}, Problem("mine", "3", "3+3=")], n=2)
        assert len(batch) == 6
        assert torch.equal(batch.outcome("reward"), -0.5 * (batch["action"] * batch["mask"]).sum(1))
        with pytest.raises(ValueError, match="no problems of its own"):
            s.sample(3)
        with pytest.raises(ValueError, match="no 'prompt'; did you mean 'promt'"):
            s.sample([{"promt": "1+1="}])


def test_messages_are_prompts_too():
    told: list[Any] = []

    def keep(prompts: list[Any], completions: list[str], tags: list[Any]) -> list[float]:
        told.append((prompts[0], tags[0]))
        return [0.0] * len(prompts)

    chat = [{"role": "user", "content": "1+1="}]
    with open_session(task=None, rewards={"keep": keep}) as s:
        batch = s.sample([{"prompt": chat, "tags": ["a"]}], n=2)
        want = s.models["policy"].encode(tuple(chat))
        assert told == [(tuple(chat), ("a",))] and batch.steps[0].context.tolist() == want.tolist()
    with open_session(task=None) as s:
        assert len(s.sample([chat], n=2)) == 2 and not s.problems


def test_named_streams_go_on_where_they_were(tmp_path: Path):
    with open_session() as first, open_session() as second:
        first.sample(1)
        first.save_state(tmp_path / "state")
        second.load_state(tmp_path / "state")
        assert second.ctx.rng("shuffle").initial_seed() == first.ctx.rng("shuffle").initial_seed()
        assert second.ctx.reward_names == first.ctx.reward_names and "small" in first.ctx.reward_names
        assert second.ctx.rng("shuffle").initial_seed() != second.ctx.rng("other").initial_seed()


def test_a_plain_function_grades():
    def short(prompts: list[str], completions: list[str], want: list[int]) -> list[float | None]:
        return [None if w < 0 else w - len(p) - len(c) for p, c, w in zip(prompts, completions, want, strict=True)]

    rows = [{"prompt": "1+1=", "want": 10}, {"prompt": "2+22=", "want": -1}]
    with open_session(task=None, rewards={"short": short}) as s:
        batch = s.sample(rows, n=2)
        text = [step.info["text"] for step in batch.steps]
        outcome = batch.outcome("reward").tolist()
        assert outcome[:2] == [10 - 4 - len(t) for t in text[:2]]
        assert all(x != x for x in outcome[2:])  # ungraded


def test_text_without_a_task_or_grader_is_only_sampled():
    with open_session(task=None, rewards={}) as s:
        batch = s.sample(["1+1="], n=3)
        assert bool(batch["reward"].isnan().all())
        assert len(batch) == 3 and bool(batch["logp"][batch["mask"]].isfinite().all())


def test_a_clone_stays_while_the_policy_moves():
    with open_session() as s:
        s.clone("reference")
        one_step(s)
        old, new = (torch.cat([p.flatten() for p in s.models[r].module.parameters()]) for r in ("reference", "policy"))
        assert not torch.equal(old, new)


def test_a_clone_takes_the_weights_anew_and_no_gradient():
    """As an iteration of DPO begins with the policy of the last as its reference."""
    with open_session(models={"other": {**TINY, "hidden": 32}}) as s:
        reference = lambda: list(s.models["reference"].module.parameters())  # noqa: E731
        s.clone("reference")
        for _ in range(2):
            one_step(s)
            assert not torch.equal(torch.cat([p.flatten() for p in reference()]), parameters(s))
            s.clone("reference")
            assert torch.equal(torch.cat([p.flatten() for p in reference()]), parameters(s))
            assert not any(p.requires_grad for p in reference())
        with pytest.raises(ValueError, match=r"'policy', which the session trains"):
            s.clone("policy", of="reference")
        with pytest.raises(ValueError, match=r"weights of 'policy' for role 'other' do not fit"):
            s.clone("other")
        with pytest.raises(KeyError, match="did you mean 'policy'"):
            s.clone("reference", of="polcy")


def test_lanes_of_environments_are_sampled_by_the_decision():
    with shuhari.session(
        "categorical", task="gym/CartPole-v1", rollout={"use": "vector", "lanes": 2}, models={"critic": "value"}
    ) as s:
        batch = s.sample(50)
        assert s.ctx.ledger["decisions"] == int(batch["mask"].sum()) >= 50
        usual = s.ctx.sampling
        assert bool(batch["logp"].isfinite().all())
        s.sample(4, sampling=Sampling(temperature=0.5))
        assert s.ctx.sampling is usual  # for that call alone
        with pytest.raises(TypeError, match="number of decisions"):
            s.sample(["a prompt"])
        assert s.evaluate(2)["greedy"] > 0


def test_environments_are_played_by_the_episode():
    with shuhari.session("categorical", task="gym/CartPole-v1") as s:
        batch = s.sample(3, n=2)
        assert len(batch["episode"].unique()) == 6


def test_mistakes_are_named():
    with pytest.raises(RecipeError, match="did you mean 'causal'"):
        shuhari.session("casual")
    with pytest.raises(RecipeError, match="hiden"):
        shuhari.session({"use": "causal", "hiden": 3})
    with pytest.raises(KeyError, match="no role 'critic'"):
        shuhari.session(Causal(hidden=16, layers=1, heads=2), trains=("critic",))


def test_a_session_works_where_an_event_loop_runs_already():
    async def cell() -> float:
        with open_session() as s:
            norm = float(one_step(s)["grad_norm"])
            with s.ctx.charging_to("probe"):  # what goes on here is known in the other thread too
                s.sample(1)
            assert s.ctx.ledger["probe/decisions"] > 0
            return norm

    with open_session() as s:
        assert asyncio.run(cell()) == one_step(s)["grad_norm"]


def test_arguments_that_mean_nothing_are_named(tmp_path: Path):
    with open_session() as s:
        batch = s.transform(s.sample(2, n=2), "advantage", {"use": "advantage", "scale": "none"})
        for given in (Clip(), [Clip()], "clip"):
            with pytest.raises(TypeError, match="forward_backward takes terms"):
                s.forward_backward(batch, given)
        assert "loss/clip" in s.forward_backward(batch, [Term("clip")])  # a name serves for a component
        s.optim_step()
        with pytest.raises(ValueError, match="no terms"):
            s.forward_backward(batch, [])
        for problems, n in ((0, 1), ([], 1), ("1+1=", 1), (2.5, 1), (2, 0)):
            with pytest.raises(ValueError, match="sample was given"):
                s.sample(problems, n=n)
        for missing in (tmp_path / "nowhere", tmp_path):
            with pytest.raises(FileNotFoundError, match="no state there"):
                s.load_state(missing)
    with pytest.raises(RuntimeError, match="the session is closed"):
        s.sample(1)


def test_rewards_may_be_a_list_of_functions():
    def first(completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    def second(completions: list[str]) -> list[float]:
        return [2.0 for _ in completions]

    with open_session(task=None, rewards=[first, second]) as s:
        assert s.sample(["1+1="], n=2).outcome("reward").tolist() == [3.0, 3.0]
    with open_session(task=None, rewards=first) as s:
        assert s.sample(["1+1="]).outcome("reward/first").tolist() == [1.0]


def test_the_task_draws_from_the_seed_of_the_session():
    with open_session(seed=1) as a, open_session(seed=1) as b, open_session(seed=2) as c:
        prompts = [[step.context.tolist() for step in s.sample(4).steps] for s in (a, b, c)]
    assert prompts[0] == prompts[1] != prompts[2]


def test_sessions_side_by_side_keep_their_own_threads():
    before = torch.get_num_threads()
    a, b = open_session(threads=1), open_session(threads=2)
    a.close()
    b.sample(1)
    assert torch.get_num_threads() == 2
    b.close()
    torch.set_num_threads(before)
