"""A tiny chat model of random weights as a Hugging Face directory: llama's layout, byte pairs, a ChatML template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}


def make_words(template: str | None = CHATML) -> Any:
    """Byte pairs of a few words, with the special tokens of ChatML and a template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(["user assistant system What is 1 + 2? It is 3."] * 20, trainer)
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    hf.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    hf.chat_template = template
    return hf


def save_chat(folder: Path, hidden: int = 16, template: str | None = CHATML, **more: Any) -> Path:
    """Write one, the same in each process, which knows 2048 positions; `more`: of its configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hf = make_words(template)
    known = {**SIZES, "hidden_size": hidden, "head_dim": hidden // 2, "max_position_embeddings": 2048, **more}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(hf), eos_token_id=hf.eos_token_id, pad_token_id=hf.pad_token_id, bos_token_id=None,
            tie_word_embeddings=True, **known,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    hf.save_pretrained(folder)
    return folder
