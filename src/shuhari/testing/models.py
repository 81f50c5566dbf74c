"""The suite that a model passes: what it samples is what it scores, row by row, and its closed forms are exact.

    from shuhari.testing import ModelCase, check_model

    def test_my_model():
        check_model(ModelCase("mine", MyModel, MyTask(), lambda n: torch.randn(n, 3)))

A check fails by an AssertionError. Of a model whose `kind` is "bound" the expected ratio is not looked at.

Axes: `B` rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.kernel.recall import MEMORY, part_memory
from shuhari.loop.breaches import generator_states
from shuhari.needs import Need, Traces, evaluate, gather
from shuhari.ports.hooks import ability

SCORE = Need(("policy",), "log_prob")


@dataclass(frozen=True)
class ModelCase:
    """A policy, and how to call it. `contexts(n)`: n contexts as its `sample` takes them; `settings`: sampling settings
    under which every possible decision has a probability; `shake`: scale of random noise added to the initial weights,
    and `nudge`: scale of the noise that makes a second policy; `rows`: number of samples that a statistical check may
    draw; `crowd`: number of dense rows sampled together, to compare with each alone; `mixture_kl`: whether its KL is
    exact under `epsilon`, too."""

    name: str
    make: Callable[[], Any]
    task: Any
    contexts: Callable[[int], Any]
    settings: tuple[Sampling, ...] = (Sampling(),)
    shake: float = 0.3
    nudge: float = 0.1
    rows: int = 3_000
    crowd: int = 100_000
    mixture_kl: bool = True


def build_case(case: ModelCase, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = case.make()
        model.build(case.task)
        return perturb(model, case.shake)


def perturb(model: Any, scale: float, seed: int = 1) -> Any:
    """Add noise of this scale to every weight of a model, in place."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.module.parameters():
            p += scale * torch.randn(p.shape, generator=g)
    return model


def perturb_all(case: ModelCase, model: Any) -> Any:
    return perturb(copy.deepcopy(model), case.nudge, seed=2)


def pick_rows(contexts: Any, rows: Any) -> Any:
    """Return some contexts, in the container that they came in; a single one as it would be stored."""
    if isinstance(contexts, dict):
        return {k: pick_rows(v, rows) for k, v in contexts.items()}
    if isinstance(contexts, list):
        return contexts[rows] if isinstance(rows, int) else [contexts[i] for i in rows]
    return contexts[rows].numpy() if isinstance(rows, int) else contexts[rows]


def rows_of(contexts: Any, traces: Any, sampling: Sampling) -> Batch:
    """Return the batch that a run would train on: one row a trace."""
    trajectories = []
    contexts, memory = part_memory(contexts)
    for i, trace in enumerate(traces):
        recalled = {} if memory is None else {MEMORY: memory[i : i + 1].numpy()}
        known: Any = {"info": {**trace.info, **recalled}, "sampling": sampling}
        step = Step.of(pick_rows(contexts, i), trace.action, trace.logp, trace.version, **known)
        trajectories.append(Trajectory(Request(Problem("t", str(i), None), 1, sampling), (step,)))
    return pack(trajectories)


def draw(case: ModelCase, model: Any, n: int, sampling: Sampling, *key: object) -> Batch:
    contexts = case.contexts(n)
    return rows_of(contexts, model.sample(contexts, sampling, noise=CounterNoise(keys(0, *key, n=n))), sampling)


def score(model: Any, batch: Batch, tokens: int = 40_000) -> Tensor:
    return gather(batch, [SCORE], {"policy": model}, tokens)[SCORE]


def is_within(x: Tensor, mean: float, sigmas: float = 4.5) -> bool:
    """Whether the mean of independent rows x [B] equals `mean`, up to `sigmas` standard errors."""
    return abs(float(x.mean()) - mean) <= sigmas * float(x.std()) / len(x) ** 0.5 + 1e-5


def assert_same(action: Any, logp: Any, other: Any, other_logp: Any) -> None:
    """Assert equal decisions (continuous ones to 1e-5), and log-probabilities to 1e-5."""
    np.testing.assert_allclose(action, other, atol=1e-5 * (np.asarray(action).dtype.kind == "f"), rtol=0)
    np.testing.assert_allclose(logp, other_logp, atol=1e-5, rtol=0)


def join_traces(traces: Any) -> tuple[list[int], Any, Any]:
    """Return (lengths, decisions, log-probabilities) of traces of several decisions, concatenated."""
    lengths = [len(t.action) for t in traces]
    return (
        lengths,
        np.concatenate([t.action for t in traces]),
        np.concatenate([t.logp for t in traces]),
    )


def rescoring_a_fresh_sample_reproduces_its_log_probability(case: ModelCase, sampling: Sampling) -> None:
    for greedy in (False, True):
        _rescore(case, replace(sampling, greedy=greedy))


def _rescore(case: ModelCase, sampling: Sampling) -> None:
    model = build_case(case)
    batch = draw(case, model, 257, sampling)
    decided = batch["mask"]
    assert bool(decided.any(1).all()) and bool(batch["logp"][decided].isfinite().all())
    torch.testing.assert_close(score(model, batch), torch.where(decided, batch["logp"], 0.0), atol=1e-4, rtol=0)


def the_expected_ratio_is_one(case: ModelCase, sampling: Sampling) -> None:
    model = build_case(case)
    if model_kind(model) == "bound":  # the ratio of two bounds is no ratio of probabilities
        return
    batch = draw(case, model, case.rows, sampling)
    ratio = ((score(perturb_all(case, model), batch) - batch["logp"]) * batch["mask"]).sum(1).exp()
    if sampling.epsilon != 1.0:
        assert float(ratio.std()) > 1e-3, "the second policy is the same as the first: the check would be empty"
    assert is_within(ratio, 1.0)


def sampling_and_scoring_leave_global_generators_alone(case: ModelCase) -> None:
    model = build_case(case)
    before = generator_states()
    score(model, draw(case, model, 5, case.settings[0]))
    assert before == generator_states()


def a_row_ignores_its_neighbours(case: ModelCase, sampling: Sampling) -> None:
    """Check that a row gives the same decision alone, in a large batch, or in another order."""
    model = build_case(case)
    dense = isinstance(model.sample(case.contexts(2), sampling, noise=CounterNoise([1, 2])), Traces)
    n = case.crowd if dense else case.rows
    contexts, row_keys = case.contexts(n), keys(0, "neighbours", n=n)
    crowd = model.sample(contexts, sampling, noise=CounterNoise(row_keys))
    order = np.random.default_rng(0).permutation(n)
    pieces = [order[:1], order[1:3], order[3:64], order[64 : n // 3], order[n // 3 :]]
    for piece in pieces:
        some = model.sample(pick_rows(contexts, piece), sampling, noise=CounterNoise(row_keys[piece]))
        if isinstance(crowd, Traces):
            assert_same(some.action, some.logp, crowd.action[piece], crowd.logp[piece])
            if crowd.taken is not None:  # more may be made of a decision than is scored
                np.testing.assert_allclose(some.taken, crowd.taken[piece], atol=1e-4, rtol=1e-4)
            continue
        mine, theirs = (
            join_traces(t)
            for t in (
                some,
                [crowd[i] for i in piece.tolist()],
            )
        )
        assert mine[0] == theirs[0], "texts of other lengths"
        assert_same(*mine[1:], *theirs[1:])


def a_rows_score_ignores_its_neighbours(case: ModelCase) -> None:
    model = build_case(case)
    batch = draw(case, model, 64, case.settings[0])
    whole = score(model, batch)
    for piece in (torch.tensor([3]), torch.arange(63, -1, -2)):
        torch.testing.assert_close(score(model, batch.take(piece)), whole[piece], atol=1e-5, rtol=0)


def closed_forms_equal_monte_carlo(case: ModelCase, sampling: Sampling) -> None:
    """Check that over own samples, KL minus log p/q, and entropy plus log p, are 0 on average, summed over a row's
    decisions."""
    model = build_case(case)
    other = perturb_all(case, model)
    batch = draw(case, model, case.rows, sampling, "closed forms")
    roles, pair = {"policy": model, "other": other}, Need(("policy", "other"), "kl")
    ratio = ((batch["logp"] - score(other, batch)) * batch["mask"]).sum(1)
    with torch.no_grad():
        have = dir(model(batch.take(torch.arange(1))))
    if "kl" in have and not (sampling.epsilon and not case.mixture_kl):  # no closed form for that mixture
        kl = gather(batch, [pair], roles, 40_000)[pair]
        assert bool((kl >= -1e-6).all())
        assert is_within(kl.sum(1) - ratio, 0.0)
    if "entropy" in have:
        need = Need(("policy",), "entropy")
        entropy = gather(batch, [need], roles, 40_000)[need]
        assert is_within((entropy + batch["logp"] * batch["mask"]).sum(1), 0.0)


def save_load_score_is_bit_equal(case: ModelCase) -> None:
    model = build_case(case)
    batch = draw(case, model, 33, case.settings[-1])
    tensors = {k: v.clone().contiguous() for k, v in model.module.state_dict().items()}
    saved = save(tensors)
    other = build_case(case, seed=9)
    perturb(other, case.nudge, seed=3)
    assert not torch.equal(score(other, batch), score(model, batch)) or case.settings[-1].epsilon == 1.0
    other.module.load_state_dict(load(saved))
    assert torch.equal(score(other, batch), score(model, batch))


def a_copy_has_weights_of_its_own(case: ModelCase) -> None:
    model = build_case(case)
    batch = draw(case, model, 65, case.settings[0])
    before = score(model, batch)
    twin = copy.deepcopy(model)
    assert torch.equal(score(twin, batch), before)
    perturb(twin, 1.0)
    assert torch.equal(score(model, batch), before)
    assert not torch.equal(score(twin, batch), before)
    again = twin.sample(case.contexts(65), case.settings[0], noise=CounterNoise(keys(0, n=65)))
    mine = torch.cat([torch.as_tensor(t.logp).flatten() for t in again])
    assert mine.shape != batch["logp"][batch["mask"]].shape or not torch.equal(mine, batch["logp"][batch["mask"]])


def gradients_reach_the_weights_where_they_are_trained_and_only_there(case: ModelCase) -> None:
    model = build_case(case)
    batch = draw(case, model, 9, case.settings[0])
    live = Need(("policy",), "log_prob", live=True)
    column = evaluate(batch, [live], {"policy": model}, trains=())[live.key]
    assert not column.requires_grad
    column = evaluate(batch, [live], {"policy": model}, trains=("policy",))[live.key]
    if not column.requires_grad:
        # a greedy action has no slope; its value has
        need = Need(("policy",), "value", live=True)
        column = evaluate(batch, [need], {"policy": model}, trains=("policy",))[need.key]
    params = [p for p in model.module.parameters() if p.requires_grad]
    grads = torch.autograd.grad(column.sum(), params, allow_unused=True)
    assert any(g is not None and bool(g.abs().sum() > 0) for g in grads)
    assert all(g is None or bool(g.isfinite().all()) for g in grads)


def picked_decisions_score_as_the_whole_does(case: ModelCase) -> None:
    """Check that a functional, given decisions through `at` chunk by chunk, gets the values of the whole batch."""
    model = build_case(case)
    batch = draw(case, model, 21, case.settings[-1])

    def picked(dists: tuple[Any, ...], action: Tensor, column: Any) -> Tensor:
        assert len(action) == int(batch["mask"].sum()) == len(column("logp"))
        return dists[0].log_prob()

    need = Need(("policy",), picked)
    found = gather(batch, [need], {"policy": model})[need]
    torch.testing.assert_close(found, score(model, batch), atol=1e-5, rtol=0)


BY_SETTING = (
    rescoring_a_fresh_sample_reproduces_its_log_probability,
    the_expected_ratio_is_one,
    a_row_ignores_its_neighbours,
    closed_forms_equal_monte_carlo,
)
BY_MODEL = (
    sampling_and_scoring_leave_global_generators_alone,
    a_rows_score_ignores_its_neighbours,
    save_load_score_is_bit_equal,
    a_copy_has_weights_of_its_own,
    gradients_reach_the_weights_where_they_are_trained_and_only_there,
    picked_decisions_score_as_the_whole_does,
)


def check_model(case: ModelCase) -> None:
    """Every check of the suite, under each of the case's sampling settings. Raises AssertionError if one fails."""
    for check in BY_MODEL:
        check(case)
    for sampling in case.settings:
        for checked in BY_SETTING:
            checked(case, sampling)


def model_kind(model: Any) -> str:
    """Return `exact`, `chain` or `bound`."""
    return ability(model, "kind")
