"""Our preference objective beside the loss of TRL's DPOTrainer, value and gradient through the same model, to 1e-5."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from comparing import TOLERANCE, our_loss, our_model, rows, same_gradient, samples, their_gradient, their_model
from datasets import Dataset
from text import prepare
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from shuhari.learners.parts import Term
from shuhari.needs import gather
from shuhari.objectives.preference import Preference

PAIRS, K = 6, 16
sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from peers import LOSSES  # noqa: E402  # the table of docs/from-trl.md


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    prepare(path, request.param)
    return path


@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name, beta, folder):
    rng = np.random.default_rng(3)
    models = {"policy": our_model(folder), "reference": our_model(folder, seed=1)}
    drawn = samples(rng, 2 * PAIRS, models["policy"].module.vocabulary, K)
    drawn = [(drawn[i % PAIRS][0], answer) for i, (_, answer) in enumerate(drawn)]  # pair i: rows i and PAIRS + i
    theirs, ours = LOSSES[name]
    term = Term(Preference(beta=beta, **ours))
    links = torch.stack([torch.arange(PAIRS), torch.arange(PAIRS) + PAIRS], 1)
    batch = gather(rows(drawn).link("pairs", links), [n for n in term.objective.needs if not n.live], models)
    value, gradient, _ = our_loss(batch, {"preference": term}, models)

    args = DPOConfig(
        str(folder / "out"), beta=beta, bf16=False, use_cpu=True, gradient_checkpointing=False, disable_dropout=True,
        report_to="none", disable_tqdm=True, **({"loss_type": [name]} | theirs),
    )  # fmt: skip
    trl = DPOTrainer(
        their_model(folder), their_model(folder, seed=1), args,
        train_dataset=Dataset.from_list([{"prompt": "1+1=", "chosen": "2", "rejected": "3"}] * 2),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    pairs = [
        {"prompt_ids": c.tolist(), "chosen_ids": a.tolist(), "rejected_ids": drawn[PAIRS + i][1].tolist()}
        for i, (c, a) in enumerate(drawn[:PAIRS])
    ]
    loss = trl._compute_loss(trl.model.train(), DataCollatorForPreference(pad_token_id=0)(pairs), False)
    torch.testing.assert_close(torch.tensor(value), loss.detach(), **TOLERANCE)
    # the share of DiscoPOP is a sigmoid of 20 times the margin, and its gradient as much as inexact
    same_gradient(gradient, their_gradient(trl.model, loss), 20.0 if name == "discopop" else 1.0)
