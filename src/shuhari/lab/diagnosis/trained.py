"""Rules about models that were trained before the run, those with a `path`: whether prompts have the format that they
were trained on, and whether the run destroys what they know. They do not apply to models with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, nan
from typing import Any

import numpy as np

from shuhari.data import EMPTY
from shuhari.kernel.rates import ADAPTED, FAR, WHOLE, find_usual
from shuhari.lab.diagnosis.evidence import Evidence, highest, lowest, recent
from shuhari.lab.diagnosis.rewards import LOOK, is_unsolved
from shuhari.lab.diagnosis.rule import Rule

EARLY = 3  # steps
LONG = 4.0  # tokens of an answer; shorter ones cannot collapse
AWAY = 1.5  # nats a token from the start; see below
NEAR = 0.01  # a loss below this has nothing left to gain
ESTIMATES = ("exact", "k1", "k2", "k3")  # forms of a divergence whose value is KL(policy || reference)
RATES = f"part.policy.optimiser.lr of about {WHOLE:g} ({ADAPTED:g} for adapters, models.policy.lora)"


def list_trained_models(e: Evidence) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (part, the table of a model that it trains), for models with a `path`."""
    models: Mapping[str, Any] = e.table.get("models") or EMPTY
    for name, part in (e.table.get("part") or EMPTY).items():
        for role in part.get("trains") or [name]:
            seen: set[str] = set()
            while role not in seen:
                seen.add(role)
                table = models.get(role) or EMPTY
                role = str(table.get("same_as") or table.get("init") or role)
                if table.get("path"):
                    yield name, table
                    break


def trains_a_model(e: Evidence) -> bool:
    """if a model with a `path` is trained"""
    return any(True for _ in list_trained_models(e))


def samples_a_model(e: Evidence) -> bool:
    """if a model with a `path` writes text and is trained"""
    return e.writes_text and trains_a_model(e)


def samples_unsolved(e: Evidence) -> bool:
    """if a model with a `path` writes text and is trained, and the reward does not rise"""
    return samples_a_model(e) and is_unsolved(e)


def early(e: Evidence, name: str) -> float:
    """the mean of the first 3 steps"""
    x = e.finite(name)[:EARLY]
    return float(x.mean()) if len(x) else nan


def times_usual(e: Evidence, name: str) -> float:
    """the largest value over the usual rate of a trained model"""
    part = name.split("/")[-2]
    usual = [find_usual(adapted=bool(model.get("lora"))) for of, model in list_trained_models(e) if of == part]
    return highest(e, name) / min(usual) if usual else nan


def recent_of_long(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps, of answers that had more than 4 tokens at first"""
    return recent(e, name) if early(e, name) > LONG else nan


def margin_for_nothing(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps, where the loss is below 0.01"""
    at = name.rpartition("/")[0]
    terms = ((e.table.get("part") or EMPTY).get(at) or EMPTY).get("terms") or EMPTY
    if at not in dict(list_trained_models(e)) or any(t.get("reference_free") for t in terms.values()):
        return nan
    losses = [recent(e, loss) for loss in e.find(f"{at}/loss/*")]
    return recent(e, name) if losses and np.nanmin(losses) < NEAR else nan


def over_four_tokens(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps, where answers of fewer than 4 tokens count as 4"""
    # one token that a reward or rows ask for, and the start did not expect, is much of a short answer
    length = recent(e, "evaluate/length")
    return recent(e, name) * (min(1.0, length / LONG) if length > 0 else 1.0)


def to_start(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps, of a KL to what the model was at first"""
    part, _, term = name.removesuffix("/kl").partition("/")
    terms = ((e.table.get("part") or EMPTY).get(part) or EMPTY).get("terms") or EMPTY
    models, found = e.table.get("models") or EMPTY, dict(list_trained_models(e)).get(part)
    to = [
        str(one.get("to", "reference"))
        for key, one in terms.items()
        if one.get("use", key) == "divergence" and term in ("", key) and one.get("form", "k3") in ESTIMATES
    ]
    tables = [models.get(role) or EMPTY for role in to]
    known = [t.get("init") or (t.get("path") or "") == (found or EMPTY).get("path") for t in tables]
    moves = set(to) & set(e.table.get("follow") or ())
    return recent(e, name) if found and known and all(known) and not moves else nan


# SmolLM2-135M after 50 healthy steps of pretrained/grpo (20 to 77 % right) is at 0.54 nats a token on its own greedy
# answers. Two steps at a rate that ruins it bring it to 1.57 (GRPO at 7e-4), 3.39 (SFT at 2e-3), 10.2 (DPO at 3e-4). At
# 1.5 the start gives each token that is written a probability 4.5 times smaller than it has now (geometric mean).
LEAVES = "the policy writes what the model that was loaded would hardly ever write: what that knew is being lost"
RULES = (
    *(
        Rule(
            name,
            reads,
            number,
            (-inf, AWAY),
            LEAVES,
            f"{RATES}, fewer steps, a KL term to a reference (part.policy.terms.divergence) or a larger weight of it. "
            "Start anew: what was undone does not come back",
            when=trains_a_model,
            at_once=True,
        )
        for name, reads, number in (
            ("leaves-its-start", "evaluate/start_kl", over_four_tokens),
            ("leaves-its-reference", "*/kl", to_start),
        )
    ),
    Rule(
        "never-ends-turn",
        "rollout/truncated",
        lowest,
        (0.0, 0.89),
        "from the first steps on nearly every answer is cut at the limit: the model does not end its turn, or has no "
        "room to",
        "prompts as the model's chat template writes them (task.chat; `shuhari data FILE --model DIR` shows what is "
        "asked), the token that ends a turn as its end (eos_token_id of its generation_config.json), or a larger "
        "rollout.sampling.max_new (256 is usual)",
        least=2,
        when=samples_a_model,
        at_once=True,
        covers=("truncation",),
    ),
    Rule(
        "babbles",
        "rollout/entropy",
        early,
        (-inf, 4.0),
        "the model writes nearly at random from the first steps on: its prompts are probably not written as it was "
        "trained to read them",
        "its chat template (task.chat = true, or messages; `shuhari data FILE --model DIR` shows what is asked), "
        "rollout.sampling.temperature = 1.0 or below, weights that are whole",
        when=samples_a_model,
        at_once=True,
    ),
    Rule(
        "rate-of-scratch",
        "*/lr",
        times_usual,
        (-inf, FAR),
        "the learning rate is one for random weights, and undoes what a trained model knows",
        f"{RATES}; the recipes pretrained/... have it. Start anew: what was undone does not come back",
        when=trains_a_model,
        at_once=True,
    ),
    Rule(
        "length-collapsed",
        "rollout/length",
        recent_of_long,
        (2.5, inf),
        "answers have shrunk to a token or two: the policy is broken, or ends its turn at once",
        f"{RATES}, a KL term to a reference (part.policy.terms.divergence), "
        f"a reward that no empty answer gets; {LOOK}",
        least=4,
        when=samples_unsolved,
        covers=("length-drift",),
    ),
    Rule(
        "margin-runs-away",
        "*/margin",
        margin_for_nothing,
        (-inf, 5.0),
        "the pairs are told apart far beyond what the loss still pays for: the policy leaves its reference for nothing "
        "and its answers get worse though accuracy is 1",
        "a smaller part.policy.optimiser.lr (1e-06 for all weights, 2e-05 for adapters are usual of pairs), fewer "
        "steps, a larger beta of the term",
        least=3,
        when=trains_a_model,
        at_once=True,
    ),
)
