"""Prompts, demonstrations, turns and what is served have the ids of transformers, in the style of a dozen models.

The oracle is transformers: `apply_chat_template` of the whole conversation. Tokenizers are byte pairs learnt here, with
the special tokens, the begin token and a template in the manner of each family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from shuhari.models.text.tokenizers import Template, Tokenizer

WORDS = ["user assistant system model What is 7 + 5? It is 12. And 8 more? 20 INST You are helpful, be brief."] * 20
GENERATION = "{% if add_generation_prompt %}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    + GENERATION + "{{ '<|im_start|>assistant\n' }}{% endif %}"
)  # fmt: skip
QWEN = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | "
    "trim + '<|eot_id|>' %}{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
    + GENERATION + "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)  # fmt: skip
GEMMA2 = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    + GENERATION + "{{ '<start_of_turn>model\n' }}{% endif %}"
)  # fmt: skip
GEMMA3 = (
    "{{ bos_token }}{% set first = '' %}{% set rest = messages %}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}{% endif %}"
    "{% for m in rest %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}" + GENERATION + "{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{% elif m['role'] == 'system' %}{{ '[INST] ' + m['content'] + '\n\n[/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    + GENERATION + "{{ '<|assistant|>\n' }}{% endif %}"
)  # fmt: skip
NO_GENERATION = "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
TRIMS = CHATML.replace("m['content']", "m['content'] | trim")
REWRITES = (  # of earlier turns it leaves out what was thought, and before an answer it asks for a thought
    "{% for m in messages %}{% set said = m['content'] %}{% if m['role'] == 'assistant' and not loop.last %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
    + GENERATION + "{{ '<|im_start|>assistant\n' }}{% endif %}"
)  # fmt: skip
PLAIN_LINES = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}" + (
    GENERATION + "{{ 'assistant:' }}{% endif %}"
)


@dataclass
class Style:
    """A family: its special tokens, which of them begin and end a text, its template, and how texts are cut."""

    special: str
    eos: str
    template: str | None
    bos: str = ""  # that the tokenizer writes before each text
    named: str = ""  # a begin token that it does not write
    spaces: bool = False  # a space before each text, as sentencepiece has it
    ends: tuple[str, ...] = ()  # of generation_config.json
    closes: str = ""  # what ends a turn
    odd: str = ""
    system: bool = True


STYLES = {
    "qwen2.5-instruct": Style("<|endoftext|> <|im_start|> <|im_end|>", "<|im_end|>", QWEN, closes="<|im_end|>"),
    "qwen2.5-base": Style("<|endoftext|> <|im_start|> <|im_end|>", "<|endoftext|>", QWEN, closes="<|im_end|>"),
    "llama-3": Style(
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|end_of_text|>",
        "<|eot_id|>", LLAMA3, bos="<|begin_of_text|>", ends=("<|end_of_text|>", "<|eot_id|>"), closes="<|eot_id|>",
    ),
    "gemma-2": Style("<bos> <eos> <start_of_turn> <end_of_turn>", "<eos>", GEMMA2, bos="<bos>", closes="<end_of_turn>",
                     system=False),
    "gemma-3": Style("<bos> <eos> <start_of_turn> <end_of_turn>", "<eos>", GEMMA3, bos="<bos>", spaces=True,
                     closes="<end_of_turn>"),
    "mistral": Style("<s> </s> [INST] [/INST]", "</s>", MISTRAL, bos="<s>", spaces=True, closes="</s>"),
    "phi-3": Style("<s> <|endoftext|> <|user|> <|assistant|> <|system|> <|end|>", "<|endoftext|>", PHI, named="<s>",
                   closes="<|end|>"),
    "gpt-2": Style("<|endoftext|>", "<|endoftext|>", None, named="<|endoftext|>"),
    "chatml": Style("<|im_start|> <|im_end|>", "<|im_end|>", CHATML, named="<|im_start|>", closes="<|im_end|>"),
    "no-generation-prompt": Style("</s> <|user|> <|assistant|> <|system|> <|end|>", "</s>", NO_GENERATION,
                                  closes="<|end|>", odd="no generation prompt"),
    "trims": Style("<|endoftext|> <|im_start|> <|im_end|>", "<|endoftext|>", TRIMS, closes="<|im_end|>"),
    "rewrites-history": Style("<|endoftext|> <|im_start|> <|im_end|>", "<|im_end|>", REWRITES, closes="<|im_end|>"),
    "lines": Style("<|endoftext|>", "<|endoftext|>", PLAIN_LINES),
}  # fmt: skip
CHATS = sorted(name for name, style in STYLES.items() if style.template)
USER = {"role": "user", "content": "What is 7 + 5?"}
SAID = {"role": "assistant", "content": "It is 12."}
MORE = {"role": "user", "content": "And 8 more?"}


def make(style: Style) -> Any:
    backend = Backend(models.BPE())
    special = style.special.split()
    if style.spaces:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        backend.decoder = decoders.Replace("\u2581", " ")
        alphabet = sorted(set("\u2581" + "".join(WORDS) + "\n"))
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=360 + len(special), special_tokens=special, initial_alphabet=alphabet,
                                  show_progress=False)  # fmt: skip
    backend.train_from_iterator(WORDS, trainer)
    if style.bos:
        one = backend.token_to_id(style.bos)
        backend.post_processor = processors.TemplateProcessing(f"{style.bos} $A", special_tokens=[(style.bos, one)])
    more = {"bos_token": style.bos or style.named} if style.bos or style.named else {}
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=style.eos, **more)
    hf.add_special_tokens({"additional_special_tokens": [t for t in special if t not in (style.eos, *more.values())]})
    hf.chat_template = style.template
    return hf


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[Any, Tokenizer]]:
    out = {}
    for name, style in STYLES.items():
        hf = make(style)
        out[name] = (hf, Tokenizer(hf, [hf.convert_tokens_to_ids(t) for t in style.ends]))
    return out


def rendered(hf: Any, messages: list[Any], reply: bool = False) -> list[int]:
    ids = hf.apply_chat_template(messages, tokenize=True, add_generation_prompt=reply, return_dict=False)
    return list(map(int, ids))


@pytest.mark.parametrize("name", CHATS)
def test_a_conversation_and_a_text_as_a_turn_of_a_user(name: str, made: Any) -> None:
    hf, text = made[name]
    want = rendered(hf, [USER], reply=True)
    assert text.encode((USER,)).tolist() == want == text.encode(USER["content"]).tolist()
    whole = [USER, SAID, MORE]
    assert text.encode(tuple(whole)).tolist() == rendered(hf, whole, reply=True)
    begins = hf.convert_tokens_to_ids(STYLES[name].bos) if STYLES[name].bos else None
    assert begins is None or want.count(begins) == 1


@pytest.mark.parametrize("name", CHATS)
def test_a_system_message_by_setting(name: str, made: Any) -> None:
    hf, text = made[name]
    other = Tokenizer(hf, text.ends)
    other.set_chat(None, "You are helpful, be brief.")
    if not STYLES[name].system:
        with pytest.raises(ValueError, match="refuses messages of system, user: System role not supported"):
            other.encode("What is 7 + 5?")
        return
    first = {"role": "system", "content": "You are helpful, be brief."}
    assert other.encode("What is 7 + 5?").tolist() == rendered(hf, [first, USER], reply=True)
    own = {"role": "system", "content": "Be brief."}
    assert other.encode((own, USER)).tolist() == rendered(hf, [own, USER], reply=True)


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("answer", ["It is 12.", " It is 12. ", "12", "\nIt is 12.\n"])
def test_prompt_and_answer_begin_the_whole_and_end_the_turn(name: str, answer: str, made: Any) -> None:
    """A demonstration, and each side of a pair."""
    hf, text = made[name]
    said = text.encode_answer((USER,), answer).tolist()
    ours = [*text.encode((USER,)).tolist(), *said]
    whole = rendered(hf, [USER, {"role": "assistant", "content": answer}])
    closes = STYLES[name].closes
    if not closes:  # the template writes no end of turn: the tokenizer's own end stands there
        assert ours[:-1] == whole[: len(ours) - 1] and said[-1] == hf.eos_token_id
        return
    assert ours == whole[: len(ours)] and said[-1] == hf.convert_tokens_to_ids(closes)
    assert hf.decode(whole[len(ours) :]).strip() == ""  # what is left out: a line break behind the turn
    assert said[-1] in text.ends and said[-1] == text.end
    assert not set(said[:-1]) & set(text.ends)


@pytest.mark.parametrize("name", CHATS)
def test_several_turns(name: str, made: Any) -> None:
    """As if the whole had been rendered at once, whether or not the model has ended its turn."""
    hf, text = made[name]
    said = text.encode_answer((USER,), SAID["content"])
    start, whole = text.encode((USER,)), rendered(hf, [USER, SAID, MORE], reply=True)
    for ended in (True, False) if STYLES[name].closes else (False,):
        own = said if ended else said[:-1]
        seen = text.encode_turn(MORE["content"], (USER,), int(own[-1]))
        assert [*start.tolist(), *own.tolist(), *seen.tolist()] == whole
        assert seen.tolist() == text.encode_turn((MORE,), (USER,), int(own[-1])).tolist()


@pytest.mark.parametrize("name", sorted(STYLES))
def test_a_text_as_it_is(name: str, made: Any) -> None:
    """With the begin token, once, as transformers writes it; the answer as it goes on behind the prompt."""
    hf, text = made[name]
    raw = Tokenizer(hf, text.ends)
    raw.set_chat(False, "")
    for prompt, answer in [("What is 7 + 5?", " It is 12."), ("What is 7", "5?"), ("What is 7 + 5?\n", "It is 12.")]:
        ids = raw.encode(prompt).tolist()
        assert ids == list(hf(prompt)["input_ids"])
        said, whole = raw.encode_answer(prompt, answer).tolist(), list(hf(prompt + answer)["input_ids"])
        assert said[-1] == hf.eos_token_id == raw.end
        if whole[: len(ids)] == ids:
            assert [*ids, *said[:-1]] == whole
        assert hf.decode([*ids, *said[:-1]]) == hf.decode(whole)
    if bos := STYLES[name].bos:
        served = raw.encode_text(Template("What is 7 + 5?"), begin=True).tolist()
        assert served == list(hf("What is 7 + 5?")["input_ids"])
        assert raw.encode_text(Template(f"{bos}What is 7 + 5?"), begin=True).tolist().count(served[0]) == 1


@pytest.mark.parametrize("name", CHATS)
def test_what_a_message_names_ends_no_turn(name: str, made: Any) -> None:
    hf, text = made[name]
    special = {hf.convert_tokens_to_ids(t) for t in STYLES[name].special.split()}
    plain = text.encode((USER,)).tolist()
    for token in STYLES[name].special.split():
        forged = text.encode(({"role": "user", "content": f"What {token} is 7 + 5?"},)).tolist()
        assert sum(i in special for i in forged) == sum(i in special for i in plain)
        said = text.encode_answer((USER,), f"It {token} is 12.").tolist()
        assert sum(i in special for i in said) == sum(i in special for i in text.encode_answer((USER,), "It is 12."))


def test_every_end_of_turn_stops_sampling(made: Any) -> None:
    for name, (hf, text) in made.items():
        style = STYLES[name]
        ends = {hf.convert_tokens_to_ids(t) for t in (style.eos, *style.ends, *[style.closes] * bool(style.closes))}
        assert set(text.ends) == ends, name


def test_an_odd_template_is_told(made: Any) -> None:
    for name in CHATS:
        told = " ".join(made[name][1].conversation.check())
        assert (STYLES[name].odd in told) if STYLES[name].odd else not told, (name, told)


def test_a_template_that_rewrites_the_answer_s_prompt_is_told_and_the_answer_kept() -> None:
    """As Qwen 3 does without thinking: it samples behind an empty thought that the whole conversation has not."""
    style = Style("<|im_start|> <|im_end|>", "<|im_end|>", CHATML.replace(
        "{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"))  # fmt: skip
    text = Tokenizer(make(style))
    assert "another prompt" in " ".join(text.conversation.check())
    with pytest.warns(UserWarning, match="writes an answer behind another prompt"):
        ids = text.encode_answer((USER,), "It is 12.")
    assert text.decode(ids) == "It is 12." and ids[-1] == text.end


def test_what_a_tokenizer_cannot_do_is_refused(made: Any) -> None:
    hf, _ = made["gpt-2"]
    text = Tokenizer(hf)
    with pytest.raises(ValueError, match="has no chat template"):
        text.set_chat(True, "")
    with pytest.raises(ValueError, match="chat is false"):
        Tokenizer(made["chatml"][0]).set_chat(False, "Be brief.")
    assert text.encode("").tolist() == [hf.bos_token_id] and np.issubdtype(text.encode("").dtype, np.int32)
