"""Part 2: whether what is computed on the device is right. Logits, log-probabilities and gradients beside those of
transformers' own forward on the same weights, in float32, and how far bfloat16 is from them, ours and theirs;
greedy texts beside `generate`; what is sampled beside what is scored; a run that is stopped and goes on beside one
that is not.

Axes: `B` rows, `T` tokens of a row, `V` vocabulary.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made import LAYOUTS, batch_of, causal, loaded, network, random_rows
from notes import Notes
from torch import Tensor

from shuhari.data import Array, Sampling
from shuhari.models.text.causal import Causal
from shuhari.models.text.rows import Row

Rows = list[tuple[Array, Array]]
QUESTIONS = ("What is 2 + 2?", "Name three colours.", "Write one sentence about the sea.",
             "What is the capital of Peru?")


def score_theirs(lm: Any, rows: Rows, device: str) -> tuple[Tensor, Tensor]:
    """(logits [n, V], log-probabilities [n]) of all tokens of actions, row by row."""
    longest = max(len(c) + len(a) for c, a in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    for i, (c, a) in enumerate(rows):
        ids[i, : len(c) + len(a)] = np.concatenate([c, a])
    logits = lm(input_ids=torch.from_numpy(ids).to(device), use_cache=False).logits.float()
    here = torch.cat([logits[i, len(c) - 1 : len(c) + len(a) - 1] for i, (c, a) in enumerate(rows)])
    taken = torch.from_numpy(np.concatenate([a for _, a in rows]).astype(np.int64)).to(device)
    return here, here.log_softmax(-1).gather(1, taken[:, None])[:, 0]


def apart(x: Tensor, y: Tensor) -> dict[str, float]:
    d = (x.detach().double().cpu() - y.detach().double().cpu()).abs()
    return {"mean": float(d.mean()), "max": float(d.max())}


def grads_apart(xs: list[Tensor], ys: list[Tensor]) -> float:
    """The norm of the difference of gradients over that of the second."""
    off = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(xs, ys, strict=True))
    return float((off / sum(float(y.double().square().sum()) for y in ys)) ** 0.5)


def forward(model: Causal, half: Causal | None, rows: Rows, device: str) -> dict[str, Any]:
    """`half`: the same weights, computed with in bfloat16; None: float32 alone."""
    lm, batch = model.module.lm, batch_of(rows)
    params, mask = list(lm.parameters()), batch["mask"]

    def ours(one: Causal) -> tuple[Tensor, list[Tensor]]:
        logp = one(batch).log_prob()[mask]
        own = list(one.module.lm.parameters())
        return logp, list(torch.autograd.grad(-logp.mean(), own))

    logits, logp = score_theirs(lm, rows, device)
    grads = list(torch.autograd.grad(-logp.mean(), params))
    with torch.no_grad():
        mine = model(batch).parameters()[mask].to(device)
    found: dict[str, Any] = {"tokens": int(mask.sum()), "logits": apart(mine, logits)}
    found["largest_logit"] = float(logits.detach().abs().max())
    own, own_grads = ours(model)
    found["float32"] = {"log_prob": apart(own, logp), "gradient": grads_apart(own_grads, grads)}
    if half is None:
        return found
    own, own_grads = ours(half)
    found["bfloat16, ours"] = {"log_prob": apart(own, logp), "gradient": grads_apart(own_grads, grads)}
    with torch.autocast(device, torch.bfloat16):
        _, theirs = score_theirs(lm, rows, device)
        their_grads = list(torch.autograd.grad(-theirs.mean(), params))
    found["bfloat16, transformers"] = {"log_prob": apart(theirs, logp), "gradient": grads_apart(their_grads, grads)}
    return found


def say(model: Causal, prompts: list[Array], sampling: Sampling, dtype: str = "") -> list[Row]:
    decoder = model.decoder(**({"dtype": dtype} if dtype else {}))
    assert decoder is not None
    rows = [Row(p, sampling, i + 1, (i,)) for i, p in enumerate(prompts)]
    decoder.add(rows)
    while len(decoder):
        decoder.step()
    return rows


def texts(
    model: Causal, prompts: list[Array], new: int, device: str, dtypes: tuple[str, ...] = ("", "bfloat16")
) -> dict[str, Any]:
    """Greedy rows beside `generate`, one prompt at a time; and the gap between sampling and scoring."""
    lm, found = model.module.lm, dict[str, Any]()
    ends = torch.tensor(list(model.text.ends))
    for dtype in dtypes:
        same, first = 0, []
        for prompt, row in zip(prompts, say(model, prompts, Sampling(greedy=True, max_new=new), dtype), strict=True):
            ids = torch.from_numpy(prompt.astype(np.int64))[None].to(device)
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bool(dtype)):
                out = lm.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new,
                                  eos_token_id=ends.tolist(), pad_token_id=int(model.text.pad))  # fmt: skip
            theirs, mine = out[0, len(prompt) :].cpu().numpy(), row.tokens
            n = min(len(theirs), len(mine))
            differ = np.flatnonzero(theirs[:n] != mine[:n])
            alike = not len(differ) and len(theirs) == len(mine)
            same += alike
            first.append(None if alike else int(differ[0]) if len(differ) else n)
        found[f"greedy, {dtype or 'float32'}"] = {"rows": len(prompts), "same": same, "first_difference": first}
    for dtype in dtypes:
        rows = say(model, [p for p in prompts for _ in range(2)], Sampling(max_new=new), dtype)
        batch = batch_of([(r.context, r.tokens) for r in rows])
        with torch.no_grad():
            scored = model(batch).log_prob()[batch["mask"]]
        sampled = torch.from_numpy(np.concatenate([r.logp for r in rows]))
        found[f"sampled in {dtype or 'float32'}, scored in float32"] = apart(sampled, scored)
    again = [say(model, prompts, Sampling(max_new=new), dtypes[-1]) for _ in range(2)]
    found["the same rows twice"] = all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logp, b.logp) for a, b in zip(*again, strict=True)
    )
    return found


def resumed(device: str, steps: int, **more: Any) -> dict[str, Any]:
    """Weights at the end of a run, beside those of the same run anew, and of one that was stopped halfway."""
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    settings = {"steps": steps, "remove": ["stage", "evaluate"], "models.policy.device": device, "rollout.n": 4,
                "buffer.size": 8, "store.every": 1, **more}  # fmt: skip
    made = recipe.load("baselines/grpo", settings=settings)

    def go(folder: Path, most: int = 0) -> dict[str, Tensor]:
        run = open_run(made, folder)
        going = loop(run)
        for i, _ in enumerate(going, 1):
            if i == most:
                break
        going.close()  # type: ignore[attr-defined]
        return {k: x.detach().cpu().clone() for k, x in run.ctx.models["policy"].module.state_dict().items()}

    def compare(x: dict[str, Tensor], y: dict[str, Tensor]) -> dict[str, Any]:
        off = max(float((x[k].double() - y[k].double()).abs().max()) for k in x)
        return {"same_bits": all(torch.equal(x[k], y[k]) for k in x), "max": off}

    with tempfile.TemporaryDirectory() as folder:
        whole, anew = go(Path(folder) / "whole"), go(Path(folder) / "anew")
        go(Path(folder) / "stopped", steps // 2)
        stopped = go(Path(folder) / "stopped")
    return {"steps": steps, "anew": compare(whole, anew), "stopped": compare(whole, stopped)}


def layouts(notes: Notes, kinds: tuple[str, ...] = tuple(LAYOUTS)) -> None:
    groups, n, prompt, new = (2, 2, 5, 8) if notes.tiny else (6, 4, 60, 120)
    for kind in kinds:
        sizes = {"kind": kind, "vocab_size": 4096, "initializer_range": 0.08, **LAYOUTS[kind]}
        if notes.tiny:
            few = {"n_embd": 64, "n_layer": 2} if kind == "gpt2" else {"hidden_size": 64, "num_hidden_layers": 2}
            sizes = {**sizes, "vocab_size": 300, **few}

        def one(sizes: dict[str, Any] = sizes) -> dict[str, Any]:
            lm = network(sizes, notes.device)
            rows = random_rows(sizes["vocab_size"], groups, n, prompt, new)
            model, half = causal(lm), causal(lm, "bfloat16")
            prompts = [c for c, _ in rows[::n]]
            return {"forward": forward(model, half, rows, notes.device),
                    "texts": texts(model, prompts, new, notes.device)}  # fmt: skip

        notes.attempt(kind, 10, one)


def pretrained(notes: Notes) -> dict[str, Any]:
    """The same of the weights that are there, on answers that the model gives to questions. On a CPU in float32: many
    have no products in bfloat16, and would take minutes."""
    assert notes.weights is not None
    cuda = notes.device == "cuda"
    model = loaded(notes.weights, notes.device)
    half = loaded(notes.weights, notes.device, "bfloat16") if cuda else None
    new = 8 if notes.tiny else 96
    prompts = [model.encode(q) for q in QUESTIONS[: 2 if notes.tiny else None]]
    said = say(model, [p for p in prompts for _ in range(2)], Sampling(max_new=new))
    found = {"texts": texts(model, prompts, new, notes.device, ("", "bfloat16") if cuda else ("",))}
    found["forward"] = forward(model, half, [(r.context, r.tokens) for r in said], notes.device)
    greedy = say(model, prompts, Sampling(greedy=True, max_new=new))
    found["answers"] = [model.decode(r.tokens) for r in greedy]  # type: ignore[assignment]
    return found


def main(notes: Notes) -> None:
    layouts(notes)
    if notes.weights is not None:
        notes.attempt("pretrained", 20, lambda: pretrained(notes))
    steps = 4
    notes.attempt("resumed", 15, lambda: resumed(notes.device, steps))
    half = {"models.policy.dtype": "bfloat16", "engine.dtype": "bfloat16"}
    notes.attempt("resumed, bfloat16", 15, lambda: resumed(notes.device, steps, **half))

    def strictly() -> dict[str, Any]:
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            return resumed(notes.device, steps)
        finally:
            torch.use_deterministic_algorithms(False)

    notes.attempt("resumed, deterministic kernels", 15, strictly)
