"""The ids of prompts and demonstrations beside TRL's, for every chat template of text that its package carries.

TRL has two forms of a template: as the model's, and for training, with marks around what an assistant writes. Prompts
are compared with the first, and the tokens that a demonstration trains with those that the second marks. Tokenizers are
byte pairs learnt here, with the special tokens that the template names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from shuhari.models.text.tokenizers import Tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
PICTURES = ("vl", "llava", "idefics", "smolvlm", "diffusion")  # of models that see images
NAMES = sorted(
    path.stem
    for path in FOLDER.glob("*.jinja")
    if (FOLDER / f"{path.stem}_training.jinja").is_file() and not any(word in path.stem for word in PICTURES)
)
SPECIAL = re.compile(r"<\|[^|<>\s']+\|>|<｜[^｜]+｜>|<[a-z_]+_of_turn>|<turn\|>|<\|turn>|\[/?INST\]|</?s>|<bos>|<eos>")
USER = {"role": "user", "content": "What is 7 + 5?"}
SAID = {"role": "assistant", "content": "It is 12."}


def make(name: str) -> Any:
    """A tokenizer with the special tokens of a template; what follows an answer there ends texts."""
    template = (FOLDER / f"{name}.jinja").read_text()
    found = list(dict.fromkeys(SPECIAL.findall(template + (FOLDER / f"{name}_training.jinja").read_text())))
    special = ["<|begin|>", "<|end_of_all|>", *found]
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400 + len(special), special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    backend.train_from_iterator(["user assistant system What is 7 + 5? It is 12."] * 20, trainer)
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end_of_all|>")
    hf.add_special_tokens({"additional_special_tokens": found})
    hf.chat_template = template
    return hf


def render(hf: Any, messages: list[Any], **more: Any) -> Any:
    return hf.apply_chat_template(messages, tokenize=True, return_dict=True, **more)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_ids_that_trl_samples_from(name: str) -> None:
    hf = make(name)
    theirs = render(hf, [USER], add_generation_prompt=True)["input_ids"]
    assert Tokenizer(hf, []).encode((USER,)).tolist() == list(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_trains_the_tokens_that_trl_marks(name: str) -> None:
    """The words, and one end of turn. Not trained here, but marked in some of the forms for training: the head of the
    answer's turn, which the prompt ends with, and what is written behind the end of turn (a line break, the end of a
    text, a second mark)."""
    hf = make(name)
    ours = Tokenizer(hf, [])
    said = ours.encode_answer((USER,), SAID["content"]).tolist()
    whole = [*ours.encode((USER,)).tolist(), *said]
    plain = list(render(hf, [USER, SAID])["input_ids"])
    theirs = render(hf, [USER, SAID], chat_template=(FOLDER / f"{name}_training.jinja").read_text(),
                    return_assistant_tokens_mask=True)  # fmt: skip
    marked = [i for i, mask in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True) if mask]
    words, their_words = (hf.decode(ids, skip_special_tokens=True).strip() for ids in (said, marked))
    assert words.endswith(SAID["content"]) and their_words.endswith(SAID["content"])
    assert said[-1] in ours.ends and said[-2] not in ours.ends
    if whole == plain[: len(whole)]:  # the template writes the same before an answer and behind a prompt
        assert hf.decode(plain[len(whole) :], skip_special_tokens=True).strip() == ""
        assert name == "glm4moe" or said[-1] in marked  # there the next turn's head ends a turn
