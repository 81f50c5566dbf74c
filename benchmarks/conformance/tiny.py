"""A language model of a few thousand weights, and trainers of TRL around it, for the scripts beside this file.

It needs TRL alone (`../peers/requirements.txt` has the versions): nothing is downloaded, nothing trained to any end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CHARACTERS = "0123456789+="
QUIET = {"report_to": "none", "logging_strategy": "no", "disable_tqdm": True, "save_strategy": "no"}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Characters, each a token."""
    ids = {c: i for i, c in enumerate(("<pad>", "<end>", *CHARACTERS))}
    made = Tokenizer(models.WordLevel(ids, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", bos_token="<end>")


def make_model(seed: int = 0, scale: float = 0.4) -> GPT2LMHeadModel:
    """Random weights, large enough for its distributions to differ from the uniform one."""
    torch.manual_seed(seed)
    size = len(CHARACTERS) + 2
    shape = {"vocab_size": size, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": scale}
    config = GPT2Config(**shape, bos_token_id=1, eos_token_id=1, pad_token_id=0)
    return GPT2LMHeadModel(config)


def make_trainer(kind: str, reward: Any, folder: str | None = None, prompts: int = 8, **settings: Any) -> Any:
    """`GRPO` or `RLOO`, of samples of at most eight tokens, on one prompt many times over."""
    usual = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "beta": 0.0, "seed": 0,
             "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "disable_dropout": True}  # fmt: skip
    arguments = {**usual, **QUIET, **settings}
    args = getattr(trl, f"{kind}Config")(folder or tempfile.mkdtemp(), **arguments)
    data = Dataset.from_list([{"prompt": f"{i % 10}+{i // 10}="} for i in range(prompts)])
    made = getattr(trl, f"{kind}Trainer")(make_model(), reward, args, data, processing_class=make_tokenizer())
    made.current_gradient_accumulation_steps = 1
    return made


def folder() -> Path:
    return Path(tempfile.mkdtemp())


def versions() -> str:
    return f"TRL {trl.__version__}, torch {torch.__version__}"
