"""Any server of the OpenAI completions API as the engine of one role, whose weights are the server's own.

It is for a frozen role, a judge or an evaluation. The server must return the log-probability of each token, and ids
that are known: `token_ids` (vLLM, with `return_token_ids`), tokens written as `token_id:5`, or tokens of which each is
one token of ours. Nothing else is accepted, since re-tokenised text may have other ids. Left out: chat, streams,
truncated sampling (the server does not report which ids it kept), and weight updates (see `vllm`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shuhari.bounds import Count, Length, Seconds, check
from shuhari.data import Array, Sampling, copy_with
from shuhari.engines.client import Client, ServerError
from shuhari.engines.local import Local
from shuhari.engines.outside import Outside, Piece, Said, explain_refusal
from shuhari.kernel.registry import register
from shuhari.models.text.pretrained import Outline
from shuhari.models.text.tokenizers import Template
from shuhari.needs import Trace, role_model
from shuhari.ports import ability

LARGEST = 1 << 26  # bytes of a reply


@register("engine", "openai")
@dataclass
class OpenAI:
    """Sample the text of one role by a server of the OpenAI completions API, whose weights are its own; all other
    roles, and scores, stay in this process.

    The role also has a model in this process, whose tokenizer is used. An end token that the server leaves out is
    added, with log-probability NaN. A key is sent only over https or to this machine. Raises ValueError for an address
    or a key that cannot be used.
    """

    spreads = ("address", "connections")
    address: str = "http://127.0.0.1:8000"
    """Address of the server, `http://HOST:PORT` or `https://HOST`, below which `/v1/completions` answers."""
    model: str = ""
    """Name of the model at the server."""
    key_env: str = ""
    """Environment variable that holds the key; empty sends none. The key itself stands nowhere else."""
    role: str = "policy"
    """Role whose text the server samples."""
    processed: bool = False
    """Trust the server's log-probabilities as sampled (vLLM with `--logprobs-mode processed_logprobs`); false refuses
    temperatures other than 1."""
    rescore: bool = False
    """Replace the server's log-probabilities by the ones of the role's model here; false refuses a role that is
    trained, true refuses temperatures other than 1."""
    connections: Length = 32
    """Number of requests at once."""
    timeout: Seconds = 120.0
    """Seconds that one request may take."""
    retries: Count = 4
    """Number of times that a request is sent again, at growing distances, if the server is busy or gone; then the
    rollout has failed."""
    max_model_len: Count = 0
    """Longest row in tokens, prompt and answer; 0 takes the limit of the role's model here."""
    staleness: Count = 0
    """Number of versions of the weights that a group may be behind when it is trained on; 0 is synchronous, above 0
    sampling and training overlap."""
    virtual: None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check(self)
        self.client = Client(
            self.address, self.key_env, self.connections, self.timeout, self.retries, LARGEST,
            setting="engine.address", key_setting="engine.key_env",
        )  # fmt: skip
        self.outside = Outside(self, self.staleness)

    @property
    def fixed(self) -> str:
        """The role that is sampled with weights that are not updated; "" if log-probabilities come from this process
        (`rescore`)."""
        return "" if self.rescore else self.role

    # ---------------------------------------------------------------- the port

    def open(self, seed: int, charge: Callable[[str, float], None]) -> None:
        """Set the seed of the draws, and the ledger to charge. Raises ValueError if the key is not set, or if nothing
        listens at the address."""
        self.client.find_key()
        self.client.reach()
        self.outside.open(seed, charge)

    def sync(self, models: Mapping[str, Any], version: int) -> None:
        """Serve these models; the server's weights stay as they are."""
        self.outside.sync(models, version)

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]:
        """Sample n traces of `role` in `context`. See `Local.sample`; raises ServerError if the server fails."""
        traces = await self.outside.sample(role, context, sampling, n, key)
        if not self.rescore or not self.outside.serves(role):
            return traces
        scores = [await self.outside.local.score(role, context, t.action, ["log_prob"]) for t in traces]
        return [copy_with(t, logp=s["log_prob"]) for t, s in zip(traces, scores, strict=True)]

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]:
        """Score by the models of this process."""
        return await self.outside.local.score(role, context, action, names)

    def refuses(self, sampling: Sampling) -> str:
        """Return why the engine cannot sample with these settings; "" if it can."""
        if why := explain_refusal(sampling):
            return why
        if sampling.truncates:
            return "top_p, top_k or min_p: the server does not say which ids it kept; expected 1, 0 and 0"
        if sampling.ban or sampling.top:
            return "ban and top are not of this API: expected none of them"
        if sampling.temperature != 1 and self.rescore:
            return (f"temperature is {sampling.temperature}, and engine.rescore = true gives log-probabilities at 1: "
                    "expected a temperature of 1, or engine.rescore = false")  # fmt: skip
        if sampling.temperature != 1 and not self.processed:
            return (f"temperature is {sampling.temperature}, and servers report log-probabilities at 1: expected 1, or "
                    "a server that reports them as sampled (engine.processed = true)")  # fmt: skip
        return ""

    def stand_in(self) -> Local:
        """Return the engine that a rehearsal uses, which costs nothing."""
        return Local(staleness=self.staleness)

    @property
    def busy(self) -> bool:
        """Whether there is work in this process."""
        return self.outside.local.busy

    def saved(self) -> dict[str, Any]:
        """Return the answers given to groups in flight."""
        return self.outside.saved()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Replay the recorded answers; unfinished calls are sent again."""
        self.outside.load(saved)

    def loaded(self) -> None:
        """Resume once all calls in flight have been made again."""
        self.outside.local.loaded()

    def forget(self, asker: str) -> None:
        """Drop the recorded answers of a group that is complete."""
        self.outside.forget(asker)

    def close(self) -> None:
        """End the open requests and their threads."""
        self.client.close()

    # ---------------------------------------------------------------- what it says

    def outline(self) -> Outline:
        """Return the outline of the role's model in this process, whose tokenizer the server must share."""
        model = role_model(self.outside.models, self.role)
        if ability(model, "export") is None:
            raise ValueError(f"role {self.role!r} is played by {type(model).__name__}: expected a model of text "
                             "(causal), which has the server's tokenizer")  # fmt: skip
        outline: Outline = model.outline()
        if outline.never and not self.processed:
            raise ValueError("the role's model never samples some ids (its padding), and the server's "
                             "log-probabilities include them: expected engine.processed = true, or another "
                             "model")  # fmt: skip
        return replace(outline, limit=min(outline.limit, self.max_model_len or outline.limit))

    async def speak(self, piece: Piece, lost: Callable[[int], None]) -> Said:
        """Request the tokens of a piece from the server, repeatedly if it is busy. `lost` is never called: the server
        does not report the tokens of a cancelled request."""
        if why := self.refuses(piece.sampling):
            raise ValueError(f"sampling: {why}")
        body: dict[str, Any] = {
            "model": self.model, "prompt": piece.ids, "max_tokens": piece.most, "seed": piece.seed, "n": 1,
            "temperature": 0.0 if piece.sampling.greedy else piece.sampling.temperature, "logprobs": 1,
            "return_token_ids": True, "stop_token_ids": list(piece.stops), "skip_special_tokens": False,
        }  # fmt: skip
        if piece.never:
            body["logit_bias"] = {str(i): -100 for i in piece.never}
        choice = await self._ask(body)
        tokens, logp = self._read(choice)
        stopped = choice.get("finish_reason") == "stop"
        if stopped and (not tokens or tokens[-1] not in piece.stops):
            tokens, logp = [*tokens, piece.stops[0]], [*logp, math.nan]
        if len(tokens) > piece.most + stopped:
            raise ServerError(f"the server said {len(tokens)} tokens: expected at most {piece.most}")
        return Said(tokens, logp, [self.outside.version] * len(tokens), stopped)

    def _read(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        """Return the ids of an answer, and the log-probability of each. Raises ServerError if they cannot be known."""
        told: Any = choice.get("logprobs") or {}
        logp, written, ids = told.get("token_logprobs"), told.get("tokens"), choice.get("token_ids")
        if not isinstance(logp, list) or not all(isinstance(x, int | float) and x <= 1e-3 for x in logp):
            raise ServerError("the server gives no log-probability of each token: expected logprobs.token_logprobs")
        if ids is None and isinstance(written, list):
            ids = [self._id_of(str(t)) for t in written]
        model = role_model(self.outside.models, self.role)
        size = model.outline().vocabulary
        if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < size for i in ids):
            raise ServerError("the ids of the server's tokens cannot be known: expected `token_ids` (vLLM), tokens as "
                              "`token_id:5`, or tokens of which each is one of the role's tokenizer")  # fmt: skip
        if len(ids) != len(logp):
            raise ServerError(f"the server gives {len(ids)} tokens and {len(logp)} log-probabilities: expected as many")
        return list(ids), [float(x) for x in logp]

    def _id_of(self, token: str) -> int:
        """Return the id of a token as the server writes it; -1 if that is not certain."""
        if match := re.fullmatch(r"token_id:(\d{1,9})", token):
            return int(match[1])
        model = role_model(self.outside.models, self.role)
        try:
            ids = model.encode(Template(token))
        except ValueError:
            return -1
        return int(ids[0]) if len(ids) == 1 and token and model.decode(np.asarray(ids)) == token else -1

    async def _ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        reply = await self.client.post("/v1/completions", body)
        choices = reply.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise ServerError(f"{self.address} answered without one choice: expected that of /v1/completions")
        return choices[0]
