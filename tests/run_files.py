"""The recipes of `tests/runs` and of `small_runs`, loaded, with the files that they read: between them and the packaged
ones, every component is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import torch

import small_runs
from shuhari.config.recipe import Recipe, load
from shuhari.models.text.made_tokenizers import bpe_tokenizer

RUNS = Path(__file__).parent / "runs"
FILES = sorted(RUNS.glob("*.toml"))  # what `small_runs` has not
ROWS = [
    {"prompt": f"{i}+1=", "answer": str(i + 1), "solution": str(i + 1), "chosen": str(i + 1), "rejected": str(i),
     "level": i % 2, "margin": i / 10, "steps": [str(i), str(i + 1)], "labels": [i % 3 > 0, None if i % 2 else 0.75]}
    for i in range(9)
]  # fmt: skip
LIBRARIES = {"puzzles": "reasoning_gym", "minari": "minari"}  # recipe -> what it cannot do without


def recipes(folder: Path, more: Mapping[str, str] = {}) -> dict[str, Recipe]:
    """name -> recipe, of all whose libraries are installed, and of `more` (name -> text); their files in `folder`."""
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    recorded(folder)
    scored(folder / "scorer")
    texts = {**small_runs.ALL, **{f.stem: placed(f.read_text(), folder) for f in FILES}, **more}
    for name, library in LIBRARIES.items():
        if find_spec(library) is None:
            del texts[name]
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text.replace('"file/sums', f'"file/{folder}/sums'))
    return {name: load(folder / f"{name}.toml") for name in texts}


def recorded(folder: Path) -> None:
    """Four episodes of a pole that falls after nine steps: as `walks.npz`, and in `walks` as Minari stores them."""
    rng = np.random.default_rng(0)
    seen, does = rng.normal(size=(4, 10, 4)).astype(np.float32), rng.integers(0, 2, (4, 9))
    ends, ones = np.tile(np.arange(9) == 8, (4, 1)), np.ones((4, 9))
    flat = {"observations": seen[:, :-1], "next_observations": seen[:, 1:], "actions": does, "terminals": ends}
    np.savez(folder / "walks.npz", rewards=ones.ravel(), **{n: np.concatenate(list(x)) for n, x in flat.items()})
    if find_spec("minari") is None or (folder / "walks").exists():
        return
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    env = gymnasium.make("CartPole-v1")
    spaces = env.observation_space, env.action_space, env.spec
    (folder / "walks" / "data").mkdir(parents=True)
    told = {"terminations": ends[0], "truncations": np.zeros(9, bool), "rewards": ones[0]}
    kept = [EpisodeBuffer(id=i, observations=seen[i], actions=does[i], **told) for i in range(4)]
    storage = MinariStorage.new(folder / "walks" / "data", *spaces, data_format="arrow")
    storage.update_episodes(kept)
    storage.update_metadata({"dataset_id": "test/walks-v0", "minari_version": "0.5.0"})


def scored(folder: Path) -> None:
    """A reward model with random weights, the same in each process."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    text = bpe_tokenizer(["1+1=2"], 260)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(
            LlamaConfig(vocab_size=text.size, num_labels=1, pad_token_id=text.pad, **sizes)
        )
    model.save_pretrained(folder)
    text.save(str(folder))


def placed(text: str, folder: Path) -> str:
    return text.replace("HERE", str(RUNS)).replace("DATA", str(folder))
