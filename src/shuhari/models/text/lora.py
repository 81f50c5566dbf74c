"""Low-rank adapters of a language model through peft (LoRA, Hu et al. 2021, arXiv 2106.09685, section 4.1).

Left out: dropout (a score must be a function of its row), adapters of the head and of embeddings, quantised bases.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from shuhari.bounds import Bounds, Length, Positive, check
from shuhari.data import nearest
from shuhari.store.files import follow_umask


@dataclass(frozen=True)
class Lora:
    """W x + (alpha / rank) B A x for each linear layer, with A random, B initially 0, and only A and B trained.

    `targets`: the layers by the last parts of their names, such as `q_proj` or `attn.c_attn`; empty: every linear layer
    except the head. `dropout` exists only to be refused.
    """

    rank: Length = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Bounds(0, 0, hint="a score must be a function of its row")] = 0.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)


def adapt(lm: Any, lora: Lora) -> None:
    """Adds adapters to a Hugging Face model and freezes all else. Draws A from the global generator. Raises ValueError
    for a target that is no layer, ModuleNotFoundError with the install command if peft is missing."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('lora needs peft: pip install "shuhari[lm]"') from error
    from transformers.pytorch_utils import Conv1D  # the linear layer of GPT-2, with transposed weight

    head = lm.get_output_embeddings()
    layers = {n: m for n, m in lm.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head}
    for target in lora.targets:
        if not any(f".{n}".endswith(f".{target}") for n in layers):
            known = {n.rpartition(".")[2] for n in layers}
            raise ValueError(f"lora.targets has {target!r}, no linear layer below the head; {nearest(target, known)}")
    chosen = [
        n
        for n in layers
        if not lora.targets or f".{n}".endswith(tuple(f".{t}" for t in lora.targets))
    ]
    transposed = any(isinstance(layers[n], Conv1D) for n in chosen)
    scale: Any = lora.alpha  # typed as an integer there
    config = LoraConfig(r=lora.rank, lora_alpha=scale, target_modules=chosen, fan_in_fan_out=transposed)
    inject_adapter_in_model(config, lm)
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def merge_adapters(lm: Any, *, without: bool = False) -> Any:
    """Returns a copy without adapters: merged into the weights, up to rounding; with `without`, the original base."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    plain = copy.deepcopy(lm)
    for name, module in list(plain.named_modules()):
        if isinstance(module, BaseTunerLayer):
            if not without:
                module.merge(safe_merge=True)
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, module.get_base_layer())
    return plain


@contextmanager
def without_adapters(lm: Any) -> Iterator[None]:
    """The model computes as its base does, exactly, as long as the context lasts: B is 0. Not for gradients."""
    ups = [x for name, x in lm.named_parameters() if ".lora_B" in name]
    kept = [x.detach().clone() for x in ups]
    with torch.no_grad():
        try:
            for x in ups:
                x.zero_()
            yield
        finally:
            for x, trained in zip(ups, kept, strict=True):
                x.copy_(trained)


def save_adapters(lm: Any, directory: Path, base: str) -> None:
    """Writes adapters that `PeftModel.from_pretrained` loads on top of the model in the directory `base`."""
    directory.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file

    config = copy.copy(lm.peft_config["default"])
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, "CAUSAL_LM", True
    config.save_pretrained(str(directory))
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": x.detach().cpu().contiguous()
        for name, x in lm.state_dict().items()
        if ".lora_" in name
    }
    save_file(tensors, str(directory / "adapter_model.safetensors"), metadata={"format": "pt"})
    follow_umask(directory)


def name_under_adapters(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights without adapters renamed to the names of `own`, a state with adapters, which are added; weights
    with adapters, unchanged."""
    if any(".lora_" in name for name in weights):
        return dict(weights)
    names = {name.replace(".base_layer.", "."): name for name in own}
    adapters = {name: x for name, x in own.items() if ".lora_" in name}
    return {**{names.get(name, name): x for name, x in weights.items()}, **adapters}
