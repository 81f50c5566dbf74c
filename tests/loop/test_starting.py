"""How far a loaded model has moved from what was loaded, against transformers' own logits of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chat_models import save_chat
from shuhari.desk.api import train
from shuhari.loop.evaluation import evaluate
from shuhari.loop.opening import open_checkpoint
from shuhari.models.text import loaded
from shuhari.models.text.lora import merge_adapters
from shuhari.models.text.pretrained import load as load_model

RECIPE = """
steps = 2
threads = 1
task = {name = "file/rows.jsonl", test_fraction = 0.3}
models.policy = {use = "causal", path = "model"}
buffer = {use = "demos", size = 4}
rollout.sampling.max_new = 4
part.policy.terms.nll.stream = "ce"
part.policy.optimiser.lr = 0.03
evaluate = {n = 3, every = 1, start_kl = 2}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("starting")
    save_chat(at / "model")
    rows = [{"prompt": f"What is {i} + 1?", "completion": str(i + 1)} for i in range(40)]
    (at / "mine.toml").write_text(RECIPE)
    (at / "lora.toml").write_text(RECIPE.replace('"model"', '"model", lora = {rank = 4, alpha = 8}'))
    (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return at


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    torch.set_num_threads(1)


def log_probabilities(lm: Any, context: Any, action: Any) -> torch.Tensor:
    """[k, V] before each token of the action."""
    ids = torch.tensor([[*context, *action]])
    return lm(input_ids=ids).logits[0, len(context) - 1 : -1].float().log_softmax(-1)


@pytest.mark.parametrize("adapted", [True, False])
@torch.no_grad()
def test_it_is_the_kl_of_transformers_logits_a_token(tmp_path: Path, adapted: bool) -> None:
    with torch.enable_grad():
        run = train("lora.toml" if adapted else "mine.toml", tmp_path / "run")
    told = run.metrics["evaluate/start_kl"]
    assert all(x > 0 for x in told) and "start_kl" not in run.summary["before"]
    with open_checkpoint(tmp_path / "run") as opened:
        ctx, model = opened.ctx, opened.ctx.models["policy"]
        ctx.probed = []
        before = {n: x.clone() for n, x in model.module.state_dict().items()}
        found = evaluate(ctx, opened.stage.evaluate, opened.stage.evaluation_rollout)
        assert all(torch.equal(x, before[n]) for n, x in model.module.state_dict().items())
        now = merge_adapters(model.module.lm) if adapted else model.module.lm
        wanted = []
        for group in ctx.probed[:2]:
            (step,) = group[0].steps
            p, q = (log_probabilities(lm, step.context, step.action) for lm in (now, load_model("model")[0]))
            wanted.append(float((p.exp() * (p - q)).sum(-1).mean()))
        kl = found.facts["start_kl"]
        np.testing.assert_allclose(kl[:2], wanted, rtol=1e-3)
        assert np.isnan(kl[2]) and told[-1] == pytest.approx(np.mean(wanted), rel=1e-3)
        none = evaluate(ctx, replace(opened.stage.evaluate, start_kl=0), opened.stage.evaluation_rollout)
        assert "start_kl" not in none.facts and none.answers == found.answers


def test_a_model_from_scratch_has_no_start(tmp_path: Path) -> None:
    run = train("mine.toml", tmp_path / "run", **{"models.policy.path": "", "models.policy.hidden": 12})
    assert "evaluate/greedy" in run.metrics and not [name for name in run.metrics if "start_kl" in name]


def test_a_start_that_is_gone_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> None:
        raise FileNotFoundError(path)

    told: list[str] = []
    monkeypatch.setattr(loaded.pretrained, "load", lambda path: gone(path) if told else load_model(path))
    run = train("mine.toml", tmp_path / "run", progress=lambda r: told.extend(["", *r.get("problems", ())]))
    assert any("FileNotFoundError" in text for text in told) and len(run.metrics["step"]) == 2
