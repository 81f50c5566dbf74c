"""Our clipped objective beside the loss of TRL's GRPOTrainer, value and gradient through the same model, to 1e-5.

What is called is the trainer's own `_compute_loss`, and for advantages `_generate_and_score_completions`. Prompts of
the GPT-2 layout have one length here: the trainer scores prompts padded on the left without position ids, so where
positions are absolute its log-probabilities depend on the padding, and ours do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from comparing import TOLERANCE, our_loss, our_model, rows, same_gradient, samples, their_gradient, their_model
from datasets import Dataset
from text import prepare
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from shuhari.kernel.pack import pad
from shuhari.learners.parts import Term
from shuhari.needs import Need, evaluate
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.transforms.advantage import Advantage

B, K = 12, 24
INF = float("inf")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    prepare(path, request.param)
    return path


def trainer(folder, reward=lambda completions, **_: [0.0] * len(completions), **settings: Any) -> GRPOTrainer:
    usual = {"per_device_train_batch_size": B, "num_generations": 4, "max_completion_length": K, "beta": 0.0}
    quiet = {"report_to": "none", "logging_strategy": "no", "disable_tqdm": True}
    args = GRPOConfig(
        str(folder / "out"), bf16=False, use_cpu=True, gradient_checkpointing=False, disable_dropout=True,
        **{**usual, **quiet, **settings},
    )  # fmt: skip
    data, text = Dataset.from_list([{"prompt": "1+1="}] * B), AutoTokenizer.from_pretrained(folder)
    made = GRPOTrainer(their_model(folder), reward, args, data, processing_class=text)
    made.current_gradient_accumulation_steps = 1
    return made


CASES = {  # TRL's settings, ours, our reduction
    "grpo": ({"loss_type": "grpo"}, {}, "row"),
    "grpo, clip higher": ({"loss_type": "grpo", "epsilon_high": 0.28}, {"high": 0.28}, "row"),
    "grpo, two-sided": ({"loss_type": "grpo", "delta": 1.5}, {"dual": 1.5}, "row"),
    "bnpo": ({"loss_type": "bnpo"}, {}, "decision"),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, {"high": 0.28}, "decision"),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {}, f"constant:{K}"),
    # TRL's bound is on the ratio itself, ours on its distance from 1
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        {"clips": "weight", "low": INF, "high": 0.3},
        "decision",
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
        {"level": "sequence", "low": 0.03, "high": 0.04},
        "row",
    ),
    "gspo, by decision": (
        {"loss_type": "dapo", "importance_sampling_level": "sequence", "epsilon": 0.03},
        {"level": "sequence", "low": 0.03, "high": 0.03},
        "decision",
    ),
}


@pytest.mark.parametrize("name", [*CASES, "temperature", "kl", "micro-batches"])
def test_loss_and_gradient(name, folder):
    theirs, ours, reduce = CASES.get(name, CASES["grpo"])
    temperature, beta = (0.7 if name == "temperature" else 1.0), (0.3 if name == "kl" else 0.0)
    rng = np.random.default_rng(7)
    model = our_model(folder)
    lengths = (6, 6) if "gpt2" in folder.name else (2, 8)
    drawn = samples(rng, B, model.module.vocabulary, K, lengths)
    batch = rows(drawn, temperature)
    with torch.no_grad():
        now = evaluate(batch, [Need(("policy",), "log_prob")], {"policy": model})["policy/log_prob"]

    def near(spread: float) -> torch.Tensor:
        return (now + spread * torch.from_numpy(rng.normal(size=now.shape)).float()) * batch["mask"]

    old, reference = near(0.3), near(0.5)
    advantage = torch.from_numpy(rng.normal(size=B)).float()
    batch = batch.put({"logp": old, "reference/log_prob": reference, "advantage": advantage[:, None] * batch["mask"]})
    terms = {"clip": Term(Clip(**ours), reduce=reduce)}
    if beta:
        terms["divergence"] = Term(Divergence(form="k3"), weight=beta, reduce=reduce)
    models = {"policy": model, "reference": model}
    value, gradient, info = our_loss(batch, terms, models, tokens=100 if name == "micro-batches" else None)
    assert 0.05 < info["clip_fraction"] < 0.95  # both branches are taken

    # by default TRL multiplies the KL by the ratio (DeepSeek-V3.2, arXiv 2512.02556), which ours does not offer
    trl = trainer(folder, temperature=temperature, beta=beta, use_bias_correction_kl=False, **theirs)
    longest = max(len(c) for c, _ in drawn)
    ids, mask = torch.zeros(B, longest, dtype=torch.long), torch.zeros(B, longest, dtype=torch.long)
    for i, (context, _) in enumerate(drawn):
        ids[i, longest - len(context) :], mask[i, longest - len(context) :] = torch.from_numpy(context).long(), 1
    loss = trl._compute_loss(
        trl.model.train(),
        {
            "prompt_ids": ids,
            "prompt_mask": mask,
            "completion_ids": pad([a for _, a in drawn], 0, np.int64),
            "completion_mask": batch["mask"].long(),
            "advantages": advantage,
            "old_per_token_logps": old,
            "ref_per_token_logps": reference,
            "num_items_in_batch": batch["mask"].sum(),
        },
    )
    torch.testing.assert_close(torch.tensor(value), loss.detach(), **TOLERANCE)
    same_gradient(gradient, their_gradient(trl.model, loss))


@pytest.mark.parametrize("scale", ["group", "none"])
def test_group_advantages(scale, folder):
    """Groups of spread, equal and partly ungraded rewards. (TRL's `batch` divides by the deviation of raw rewards, ours
    by that of centred ones, as REINFORCE++ does: two definitions, not compared.)"""
    rewards: list[float | None] = [1, 0, 0, 1, 0.3, 0.3, 0.3, 0.3, 0.2, None, 0.9, -1.5]
    trl = trainer(folder, lambda completions, **_: rewards, scale_rewards=scale, max_completion_length=2)
    trl.model.train()
    found = trl._generate_and_score_completions([{"prompt": "1+1="}] * B)["advantages"]

    drawn = samples(np.random.default_rng(0), B, 10, 3)
    batch = rows(drawn)
    outcome = torch.tensor([torch.nan if r is None else r for r in rewards])
    last = batch["mask"].sum(1) - 1
    reward = torch.zeros(batch["mask"].shape).scatter(1, last[:, None], outcome[:, None])
    batch = batch.put({"reward": reward, "group": torch.arange(B) // 4})

    class Ctx:
        def charge(self, what: str, amount: float) -> None:
            assert (what, amount) == ("ungraded", 1)

    ours = Advantage(scale=scale)(batch, Ctx())["advantage"]
    torch.testing.assert_close(ours[:, 0], found, **TOLERANCE)
    assert float(found.abs().max()) > 0.5
