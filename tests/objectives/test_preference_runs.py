"""From recipe to weights: DPO and KTO learn from a file what it prefers, by the settings that a user would write."""

import json
from math import exp, log1p

import pytest
import torch

from shuhari.config.recipe import load
from shuhari.learners.loss import Loss
from shuhari.loop.run import loop, open_run
from shuhari.needs import evaluate, gather
from shuhari.objectives.preference import scores

TINY = [
    "steps=30",
    "buffer.size=8",
    "part.policy.optimiser.lr=1e-2",
    "models.policy.hidden=16",
    "models.policy.layers=1",
    "models.policy.heads=2",
    'remove=["evaluate"]',
]


@pytest.fixture
def files(tmp_path):
    """Odd answers are good: the answer to i is 2i + 1, and never 2i."""
    pairs = [{"prompt": f"{i}=", "chosen": str(2 * i + 1), "rejected": str(2 * i)} for i in range(10)]
    labels = [{"prompt": f"{i}=", "completion": str(2 * i + g), "label": bool(g)} for i in range(10) for g in (0, 1)]
    for name, rows in (("pairs", pairs), ("labels", labels)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    ("method", "file", "more"),
    [
        ("dpo", "pairs", []),
        ("dpo", "pairs", ["part.policy.terms.preference.form=ipo", "part.policy.terms.preference.level=sequence"]),
        ("kto", "labels", []),
        ("kto", "pairs", ["buffer.links=labels"]),
    ],
)
def test_what_is_preferred_becomes_likelier_than_what_is_not(method, file, more, files):
    own = [f'task.name="file/{files}/{file}.jsonl"', "buffer.use=preferences", 'remove=["stage.warm-up"]']
    run = open_run(load(f"baselines/{method}", [*own, *TINY, *more]))
    reports = list(loop(run))
    first, last = (r["policy/chosen"] - r["policy/rejected"] for r in (reports[0], reports[-1]))
    assert abs(first) < 0.2 and last > first + 0.3  # beta s: the policy began as its reference
    if method == "dpo":
        assert reports[-1]["policy/accuracy"] > 0.9
    moved = [
        not torch.equal(a, b)
        for a, b in zip(*(run.ctx.models[r].module.state_dict().values() for r in ("policy", "reference")), strict=True)
    ]
    assert any(moved)


def test_what_a_file_says_of_its_pairs_is_learnt_by(tmp_path):
    """Where policy and reference are one, h is - margin: the first loss is a weighted mean of closed forms. Pairs of
    label 0 are then learnt the other way round."""
    told = [(0.0, 1.0, 1.0), (0.5, 1.0, 2.0), (1.0, 0.0, 1.0), (0.0, 0.0, 0.5), (0.25, 0.0, 0.5), (0.5, 1.0, 1.0)]
    lines = [{"prompt": f"{i}=", "chosen": str(2 * i + 1), "rejected": str(2 * i), "split": "train"} for i in range(6)]
    rows = [{**line, "margin": m, "label": p, "weight": w} for line, (m, p, w) in zip(lines, told, strict=True)]
    (tmp_path / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = [f'task.name="file/{tmp_path}/told.jsonl"', "buffer.use=preferences", 'remove=["stage.warm-up"]']
    run = open_run(load("baselines/dpo", [*own, *TINY, "buffer.size=6", "steps=40", "part.policy.minibatches=1"]))
    reports = list(loop(run))
    losses = [w * (p * log1p(exp(m)) + (1 - p) * log1p(exp(-m))) for m, p, w in told]
    assert reports[0]["policy/loss/preference"] == pytest.approx(sum(losses) / sum(w for *_, w in told), rel=1e-4)
    (batch,) = run.stage.learners["main"].buffer.draw(run.ctx)
    index, columns = batch.links["pairs"]
    part = run.stage.learners["main"].parts["policy"]
    s = scores(batch.put(evaluate(batch, part.needs, run.ctx.models)), part.needs, "row")
    apart = (s[index[:, 0]] - s[index[:, 1]]).tolist()
    for d, label in zip(apart, columns["label"].tolist(), strict=True):
        assert d > 0 if label else d < 0


@pytest.mark.parametrize(("method", "file"), [("dpo", "pairs"), ("kto", "labels")])
def test_micro_batches_change_nothing(method, file, files):
    """A pair is cut apart, and the reference point is that of the whole batch: neither loss nor gradient moves."""
    own = [f'task.name="file/{files}/{file}.jsonl"', "buffer.use=preferences", 'remove=["stage.warm-up"]']
    (whole, cut), seen = ([], []), []
    for tokens, into in ((0, whole), (12, cut)):
        run = open_run(load(f"baselines/{method}", [*own, *TINY, f"micro_batch={tokens}"]))
        run.enter_stage()
        step_aside(run.ctx.models["reference"].module)  # else the two agree, and a reference point is 0
        (batch,) = run.stage.learners["main"].buffer.draw(run.ctx)
        part = run.stage.learners["main"].parts["policy"]
        params = list(run.ctx.models["policy"].module.parameters())
        loss = Loss(gather(batch, part.needs, run.ctx.models), part, "policy", run.ctx, params, tokens or None)
        seen.append(len(loss.pieces))
        into += [loss.backward(), torch.cat([p.grad.flatten() for p in params])]
    assert seen[0] == 1 and seen[1] > 5
    assert cut[0] == pytest.approx(whole[0], rel=1e-4) and whole[0].get("kl", 1) > 0.01
    torch.testing.assert_close(cut[1], whole[1], rtol=1e-4, atol=1e-6)


def step_aside(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
