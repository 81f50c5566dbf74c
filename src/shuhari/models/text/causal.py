"""Causal language models, made from scratch or loaded: policy, critic, or both.

Left out: quantisation, dropout (a score must be a function of its row), images. Rows are read through `batch.steps`.
The forward is in `trunk.py`, sampling in `decoding.py`, the distribution in `tokens.py`.

Axes: `B` rows, `K` positions of an action.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.bounds import Count, Depth, Length, Width, check
from shuhari.data import EMPTY, Array, Payload, Sampling, nearest
from shuhari.kernel.registry import register
from shuhari.models.devices import find_device
from shuhari.models.readout import Values
from shuhari.models.text import classifier, pretrained, stored
from shuhari.models.text.choice import Stops, make_stops
from shuhari.models.text.decoding import Decoder
from shuhari.models.text.loaded import as_loaded
from shuhari.models.text.lora import Lora, adapt, merge_adapters, name_under_adapters, save_adapters
from shuhari.models.text.made_tokenizers import bpe_tokenizer, character_tokenizer, task_texts
from shuhari.models.text.rows import Row
from shuhari.models.text.static import generate
from shuhari.models.text.tokenizers import Tokenizer
from shuhari.models.text.tokens import TokenDist
from shuhari.models.text.trunk import Trunk
from shuhari.needs import Noise, Trace
from shuhari.ports.hooks import ability
from shuhari.store.files import find_memory, follow_umask

VALUE = "value_head.safetensors"
_SURE = set[str]()  # loaded models whose fast forward this process has compared with transformers' own


@register("model", "causal")
@register("model", "causal_value", value_head=True)
@dataclass
class Causal:
    """A causal language model, loaded or made from scratch: a policy, a critic, or both. Its log-probability is exact.

    A loaded model ends a text at any of its end tokens. One from scratch never samples its padding token, which has
    probability 0 at every decision, in sampling and scoring. `save` writes this restriction in transformers' form
    (`suppress_tokens`); a loaded model has only that restriction. Checkpoints hold the weights that differ from the
    files at `path`, and refer to the rest, with digests.
    """

    path: str = ""
    """Model to load: a directory with weights and tokenizer or with LoRA adapters (merged into their base), a run (its
    last weights, adapters merged), a .gguf file, or a hub id; empty makes a model from scratch."""
    architecture: str = "llama"
    """`model_type` of transformers that a model from scratch has."""
    hidden: Width = 96
    """Width of the hidden states, from scratch; a multiple of `heads`."""
    layers: Depth = 3
    """Number of layers, from scratch."""
    heads: Width = 3
    """Number of attention heads, from scratch."""
    intermediate: Width = 256
    """Width of the feed-forward layers, from scratch."""
    context: Count = 0
    """Longest row in tokens, prompt and answer; 0 uses the limit of the model's configuration."""
    tied: bool = True
    """Use the input embeddings as output head, from scratch."""
    config: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """Further keys of the configuration of transformers, from scratch."""
    tokenizer: Literal["char", "bpe"] = "char"
    """Tokenizer from scratch: `char` has a token for each character, `bpe` learns `vocabulary` tokens from the training
    problems."""
    alphabet: str = ""
    """Characters of the `char` tokenizer; empty uses those of the task, or printable ASCII."""
    vocabulary: Length = 512
    """Number of tokens of the `bpe` tokenizer."""
    value_head: bool = False
    """Add a linear value of the hidden state before each decision, initially 0, so that one trunk is policy and critic
    (`same_as`); the model `causal_value` has one."""
    outputs: Width = 1
    """Number of values of the head (several critics, [B, K, n])."""
    after: bool | Literal["last"] = False
    """Value the state after a decision, which includes it (a Q-function, a reward of tokens), instead of the state
    before; `last` gives that of the last decision and 0 elsewhere, the score of a whole text (a reward model)."""
    chat: bool | None = None
    """Format a text prompt as one user turn, by the model's chat template; None follows `task.chat`, or the presence of
    a template."""
    system: str = ""
    """System message of conversations that have none; empty uses the task's."""
    lora: Lora | None = None
    """Train low-rank adapters, and the value head, instead of all weights; needs the extra `lm`."""
    device: str = "cpu"
    """Torch device of the weights, such as `cpu` or `cuda`."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of each layer for the gradient and recompute the layers: less memory, a third more work."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type in which linear layers score and train, with float32 parameters; head, norms and the residual stream
    stay float32."""
    kind: Literal["exact"] = field(init=False, default="exact")

    def __post_init__(self) -> None:
        check(self)
        if self.path == "?":
            raise ValueError("path: which model? This recipe trains one of yours: set models.<role>.path to its "
                             "directory (of transformers or `shuhari export`), or to a .gguf file")  # fmt: skip
        if not self.path and (wrong := self._explain_heads()):
            raise ValueError(f"causal: hidden is {self.hidden} and heads {self.heads}: {wrong}")
        size = 0 if self.path else self.layers * self.hidden * (4 * self.hidden + self.intermediate)
        if 4 * size > (room := find_memory()) > 0:
            needed = f"{4 * size / 2**30:,.0f} GiB, and this machine has {room / 2**30:.1f} GiB of memory"
            raise ValueError(f"causal: layers, hidden and intermediate make a model of {needed}: expected smaller ones")
        if not self.value_head and (self.after or self.outputs > 1):
            raise ValueError("causal: `after` and `outputs` are of a value head: set value_head = true")

    def _explain_heads(self) -> str:
        """Returns why layers cannot be split into heads; "" if they can."""
        if self.hidden < self.heads:
            return "expected at most as many heads as hidden"
        if self.hidden % self.heads:
            below = self.hidden // self.heads * self.heads
            return f"expected a hidden that is a multiple of heads, such as {below} or {below + self.heads}"
        width = self.hidden // self.heads
        odd = self.architecture == "llama" and width % 2 and "head_dim" not in self.config
        return f"a head is {width} wide: expected an even width, as positions rotate it" if odd else ""

    @property
    def offers(self) -> frozenset[str]:
        """The names of the methods that its distribution has."""
        if self.after:
            return frozenset({"value"})
        return frozenset(dir(TokenDist)) - (frozenset() if self.value_head else {"value", "after"})

    def build(self, task: Any) -> None:
        """Makes or loads tokenizer and weights. Raises ValueError for an unknown architecture, configuration key or
        tokenizer, and for an architecture whose logits are not a function of its last hidden state alone."""
        if ability(task, "spaces")() is not None:
            raise ValueError("model 'causal' reads text, and this task has spaces of numbers: use another model, "
                             "as baselines/ppo_cartpole and baselines/ppo_pendulum have")  # fmt: skip
        device = find_device(self.device)
        lm, self.text = pretrained.load(self.path) if self.path else self._scratch(task)
        chat = ability(task, "chat") if self.chat is None else self.chat
        try:
            self.text.set_chat(chat, self.system or ability(task, "system"))
        except ValueError as error:
            raise ValueError(f"{self.path or self.architecture}: {error}") from None
        if self.lora is not None:
            adapt(lm, self.lora)
        dtype = pretrained.DTYPES[self.dtype]
        outputs = self.outputs if self.value_head else 0
        made = pretrained.find_digest(lm) if self.path else ""  # a run loads it twice: to rehearse, and to train
        net = Trunk(lm, outputs, self.context, self.gradient_checkpointing, dtype, sure=made in _SURE)
        _SURE.update([made] * (self.path != "" and net.lean is not None))
        self.module = net.to(device)
        if self.module.why:
            message = "it is run by transformers' own forward and sampled a batch at a time: right, but slower"
            warnings.warn(f"{self.path or self.architecture}: {self.module.why}; {message}", stacklevel=2)
        head = Path(self.path).expanduser() / VALUE
        if self.path and self.value_head and head.is_file():
            pretrained.load_head(self.module.value, head)

    # ---------------------------------------------------------------- text

    @property
    def end(self) -> int:
        """The id of the end token."""
        return self.text.end

    @property
    def limit(self) -> int:
        """The longest row that it can process, in tokens; before it is built, according to its settings."""
        built: Trunk | None = vars(self).get("module")
        return (self.context or 1 << 30) if built is None else built.limit

    @property
    def longest(self) -> int:
        """The largest allowed `context`: for a loaded model, its number of positions."""
        known = pretrained.count_positions(self.module.lm) if self.path else 0
        return known or 1 << 30

    @property
    def special(self) -> Mapping[int, str]:
        """Id -> name of the tokens that are not text."""
        hf = self.text.hf
        added = [i for i, token in hf.added_tokens_decoder.items() if token.special]
        ids = {*map(int, hf.all_special_ids), *self.text.ends, *added}
        return {i: str(hf.convert_ids_to_tokens(i)) for i in sorted(ids)}

    @property
    def packs(self) -> bool:
        """Whether it runs rows without padding, so that micro-batches are sized by their real tokens."""
        return self.module.lean is not None

    def encode(self, prompt: Payload) -> Array:
        """Returns [k] the token ids of a string or of messages."""
        return self.text.encode(prompt)

    def decode(self, ids: Array) -> str:
        """Returns the text of token ids, without a closing end token."""
        return self.text.decode(ids)

    # ---------------------------------------------------------------- decisions

    def __call__(self, batch: Batch) -> Any:
        """Runs one forward pass; returns a lazy TokenDist, computed at the decisions only, or with `after` Values."""
        return Values(self._values_after(batch)) if self.after else self._dist(batch)

    def _values_after(self, batch: Batch) -> torch.Tensor:
        """Returns [B, K] (or [B, K, n]) the value of the state after each decision."""
        more = torch.zeros(len(batch), 1, dtype=torch.long)  # the state before one more position is that after the last
        action = torch.cat([batch["action"], more.to(batch["action"].dtype)], 1)
        behind = batch.put({"action": action, "mask": torch.cat([more.bool(), batch["mask"]], 1)})
        value = self._dist(behind.put({"length": batch["length"] + 1})).value()[:, 1:]
        if self.after != "last":
            return value
        mask = batch["mask"]
        last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
        return value * last.view(*last.shape, *[1] * (value.dim() - 2))

    def _dist(self, batch: Batch) -> TokenDist:
        contexts = [step.context for step in batch.steps]
        k = batch["length"].numpy() - np.fromiter(map(len, contexts), np.int64, len(contexts))  # type: ignore[arg-type]
        k = np.where([step.action is None for step in batch.steps], 0, k)  # a closing row has no tokens
        mask, device, net = batch["mask"], self.module.device, self.module
        seen = mask
        if net.value is not None and not bool((some := mask.any(1)).all()):
            seen = mask.clone()
            seen[~some, 0] = True  # rows without decisions are valued by their context
        hidden = net.before(contexts, batch["action"], k, seen, self.text.pad)  # type: ignore[arg-type]
        support, ban, temperature = (
            None if (x := batch.get(name)) is None else x.to(device).flatten(0, 1)
            for name in ("support", "ban", "temperature")
        )
        return TokenDist(
            hidden=hidden,
            action=batch["action"].to(device).flatten(),
            mask=mask.flatten().to(device),
            head=net.logits,
            vocabulary=net.vocabulary,
            shape=tuple(mask.shape),
            temperature=None if temperature is None else temperature.nan_to_num(1.0),  # NaN: not sampled here
            support=support,
            ban=ban,
            suppressed=net.suppressed.to(device) if len(net.suppressed) else None,
            scalar=net.scalar,
            seen=seen.flatten().to(device),
            linear=net.linear,
            stretch=net.stretch,
            behind=lambda: self._values_after(batch),
        )

    def sample(self, contexts: Sequence[Array], sampling: Sampling, *, noise: Noise) -> list[Trace]:
        """Generates one trace for each context, until its end token, a stop string, `max_new` tokens or the longest row
        that the model reads. An end token is a decision; a token of `module.suppressed` never is. `Row.trace` describes
        `info`. Raises ValueError for unsupported settings, NoRoom for a context that is empty or fills the model."""
        row_keys = noise.keys
        decoder = None if row_keys is None else self.decoder(copy=False)  # weights do not change before it returns
        if decoder is None or row_keys is None:
            stopped = self._stops(sampling.stop)
            return generate(
                self.module, contexts, sampling, noise, ends=self.text.ends, pad=self.text.pad, stopped=stopped
            )
        rows = [Row(c, sampling, key, (i,)) for i, (c, key) in enumerate(zip(contexts, row_keys, strict=True))]
        decoder.add(rows)
        while len(decoder):
            decoder.step()
        return [row.trace() for row in rows]

    def decoder(self, **settings: Any) -> Decoder | None:
        """Returns continuous batching with these settings (see `Decoder`); None if the layout has no fast path. Raises
        ValueError for settings that would then have no effect, and for those that `Decoder` refuses."""
        if self.module.lean is not None:
            return Decoder(self.module, self.module.lean, ends=self.text.ends, stops=self._stops, **settings)
        for name in ("slots", "chunk", "dtype"):
            if settings.get(name):
                message = f"expected none, as this model is sampled by transformers' own forward: {self.module.why}"
                raise ValueError(f"{name} is {settings[name]!r}: {message}")
        return None

    def _stops(self, strings: Sequence[str]) -> Stops | None:
        return make_stops(strings, self.text.stops(strings), self.text.decode)

    def save(self, directory: str | Path, *, dtype: str = "", shard: str = pretrained.SHARD) -> None:
        """Saves a Hugging Face directory: configuration, safetensors, tokenizer; and the value head. Adapters are
        merged into the weights. `dtype`: float32 (the default), bfloat16 or float16; `shard`: the largest file."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        lm = self.module.lm if self.lora is None else merge_adapters(self.module.lm)
        pretrained.save(lm, self.text, directory, dtype=dtype, shard=shard)
        if self.module.value is not None:
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in self.module.value.state_dict().items()}, str(directory / VALUE))
            follow_umask(directory)

    def outline(self) -> pretrained.Outline:
        """Returns the data that an external engine needs to sample from it."""
        net, text = self.module, self.text
        return pretrained.Outline(text.ends, tuple(net.suppressed.tolist()), net.vocabulary, net.limit,
                                  str(net.lm.config.model_type), text.decode, text.stops)  # fmt: skip

    def export(self, directory: str | Path) -> None:
        """Saves only configuration and weights, adapters merged, for an external engine."""
        lm = self.module.lm if self.lora is None else merge_adapters(self.module.lm)
        pretrained.export(lm, Path(directory))

    def save_scorer(self, directory: str | Path, *, dtype: str = "", shard: str = pretrained.SHARD) -> None:
        """Saves the value head in the form of transformers: at the last token of a text
        (`AutoModelForSequenceClassification`), or with `after` = True at each token
        (`AutoModelForTokenClassification`). Raises ValueError without a head, or with several outputs."""
        if self.module.value is None or self.outputs != 1:
            raise ValueError(f"it has {self.outputs if self.value_head else 'no'} value heads: expected value_head = "
                             "true, with one output")  # fmt: skip
        lm = self.module.lm if self.lora is None else merge_adapters(self.module.lm)
        head = {k: v.detach().cpu() for k, v in self.module.value.state_dict().items()}
        classifier.save(
            lm, head, self.text, Path(directory), dtype=dtype, shard=shard,
            reads="tokens" if self.after is True else "text",
        )  # fmt: skip

    def save_adapters(self, directory: str | Path, base: str) -> None:
        """Saves only the adapters, in peft's format for the base model in the directory `base`, and the tokenizer."""
        save_adapters(self.module.lm, Path(directory), base)
        self.text.save(str(directory))

    def save_base(self, directory: str | Path) -> None:
        """Saves the base model without its adapters, in the format of `save`."""
        pretrained.save(merge_adapters(self.module.lm, without=True), self.text, directory)

    def renamed(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Returns the weights of a model without adapters, renamed to this one's names, with its own adapters; others
        unchanged."""
        return weights if self.lora is None else name_under_adapters(weights, self.module.state_dict())

    def on_disk(self) -> tuple[str, tuple[str, ...]]:
        """Returns (path, names of the weights stored there unchanged); no names for weights that were made from
        scratch, merged (adapters, a run) or fetched, which a checkpoint stores by value."""
        if not self.path or not pretrained.lies_at(Path(self.path).expanduser()):
            return "", ()
        names = (n for n in self.module.state_dict() if n.partition(".")[0] in (stored.BASE, stored.HEAD))
        return self.path, tuple(n for n in names if ".lora_" not in n)

    def initial(self) -> Callable[[Batch], TokenDist] | None:
        """Returns the model as it was loaded, a function of a batch, for scoring without gradients: itself without its
        adapters, or a copy that is read again from `path`. None if it was made from scratch, and for a model of more
        than a billion weights that are trained themselves, of which a second copy may not fit."""
        return as_loaded(self, Causal._dist)

    # ---------------------------------------------------------------- from scratch

    def _scratch(self, task: Any) -> tuple[Any, Tokenizer]:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

        if self.architecture not in KNOWN:
            raise ValueError(f"no causal architecture {self.architecture!r}; {nearest(self.architecture, KNOWN)}")
        text = self._tokenizer(task)
        usual = AutoConfig.for_model(self.architecture)
        wrong = [k for k in self.config if not hasattr(usual, k)]
        if wrong:
            near = nearest(wrong[0], usual.to_dict())
            raise ValueError(f"config of {self.architecture!r} has no key {wrong[0]!r}; {near}")
        sizes: dict[str, Any] = {
            "vocab_size": text.size, "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads, "head_dim": self.hidden // self.heads,
            "intermediate_size": self.intermediate, "tie_word_embeddings": self.tied,
            "pad_token_id": text.pad, "eos_token_id": text.end, "bos_token_id": None,
        }  # fmt: skip
        if self.context:
            sizes["max_position_embeddings"] = self.context
        sizes = {k: v for k, v in sizes.items() if hasattr(usual, k)}
        config = AutoConfig.for_model(self.architecture, **{**sizes, **self.config})
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        lm.generation_config.suppress_tokens = [text.pad] if text.pad != text.end else None
        return lm, Tokenizer(text.hf, limit=lm.get_input_embeddings().num_embeddings)

    def _tokenizer(self, task: Any) -> Tokenizer:
        if self.tokenizer == "char":
            return character_tokenizer(self.alphabet or ability(task, "alphabet"))
        return bpe_tokenizer(task_texts(task), self.vocabulary)


CausalValue = partial(Causal, value_head=True)  # as registered under `causal_value`
