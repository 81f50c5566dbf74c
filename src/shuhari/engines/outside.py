"""What engines share whose model runs elsewhere: a row is requested in pieces, answers are recorded for a resumed run,
and the engine in this process does everything that the other side cannot.

A piece is a run of tokens under one setting. A row is one piece, unless its first token bans some ids or it may end at
a stop string: then it is requested a few tokens at a time, and tokens after the string are dropped; the other side
keeps what it has read (its prefix cache). Left out: who answers (`Speaker`).

Axes: `K` decisions of a row, `S` ids a decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shuhari.data import Array, Ramp, Sampling, is_tokens
from shuhari.engines.batched import add_text
from shuhari.engines.clock import run_together
from shuhari.engines.journal import Journal, plain
from shuhari.engines.local import Local
from shuhari.kernel.noise import keys, mix
from shuhari.models.text.choice import make_stops
from shuhari.models.text.pretrained import Outline
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace, role_model
from shuhari.ports import CURRENT_GROUP, ability

SMALL = 4096  # ids of a vocabulary of which all log-probabilities of a decision may be asked for
PIECE = 32  # tokens between two looks for a stop string: a block of vLLM's prefix cache


@dataclass(frozen=True)
class Piece:
    """A request for tokens after `ids`: at most `most`, drawn with this seed (below 2**63), never one of `never`, ended
    by any of `stops`. `kept`: number of alternatives wanted with each decision, -1 for all."""

    ids: list[int]
    most: int
    seed: int
    sampling: Sampling
    never: tuple[int, ...]
    stops: tuple[int, ...]
    kept: int


@dataclass(frozen=True)
class Said:
    """The answer to a piece: tokens, log-probabilities and versions of the weights, each [K]; whether an end token was
    drawn; and for each decision the alternatives that could be drawn, id -> log-probability."""

    tokens: Sequence[int]
    logp: Sequence[float]
    version: Sequence[int]
    stopped: bool
    kept: Sequence[Mapping[int, float]] = ()


class Speaker(Protocol):
    """A client of the model elsewhere: it answers requests (`Piece`), and describes the model."""

    role: str

    def outline(self) -> Outline: ...

    async def speak(self, piece: Piece, lost: Callable[[int], None]) -> Said:
        """Answer a piece. If it is cancelled, `lost` is called with the number of tokens drawn so far, if that is
        known."""
        ...


def explain_refusal(sampling: Sampling, vocabulary: int = 0) -> str:
    """Return why an engine elsewhere cannot sample with these settings as the one here does; "" if it can.
    `vocabulary`: 0 if it is not known yet."""
    if sampling.epsilon != 0:
        return f"epsilon is {sampling.epsilon}: a language model samples without; expected 0"
    if isinstance(sampling.temperature, Ramp):
        return "temperature is a schedule over decisions: expected a number, or engine.use = \"local\""
    if sampling.top_p < 1 and sampling.min_p > 0:
        return ("top_p and min_p together: vLLM applies them in another order, and other ids are kept; expected one of "
                "them, or engine.use = \"local\"")  # fmt: skip
    if (sampling.top_p < 1 or sampling.min_p > 0) and not sampling.top_k and vocabulary > SMALL:
        return (f"top_p or min_p without top_k, and {vocabulary} ids: only all of them would tell which were "
                f"kept; expected a top_k too, such as 50, or a vocabulary of at most {SMALL}")  # fmt: skip
    if sampling.greedy and (sampling.temperature != 1 or sampling.truncates):
        return ("greedy beside a temperature or a truncation: vLLM reports the log-probabilities of greedy answers at "
                "temperature 1 and untruncated; expected temperature = 1, top_p = 1, top_k = 0, min_p = 0")  # fmt: skip
    return ""


async def say_row(
    context: Array, sampling: Sampling, key: int, outline: Outline, speaker: Speaker, count: Callable[[int], None]
) -> Trace:
    """Sample one row of text and return it as `Row.trace` describes a row sampled here; `count` is called with the
    number of tokens of each piece."""
    most = min(sampling.max_new, outline.limit - len(context))
    stops = make_stops(sampling.stop, outline.spell(sampling.stop), outline.decode)
    wide = (sampling.top_k or -1) if sampling.truncates else 0
    kept = wide if wide < 0 else max(wide, sampling.top)
    tokens: list[int] = []
    logp: list[float] = []
    version: list[int] = []
    alternatives: list[Mapping[int, float]] = []
    ended, at = False, 0
    while not ended and len(tokens) < most:
        first = not tokens and bool(sampling.ban)
        left = most - len(tokens)
        never = tuple(dict.fromkeys((*outline.never, *sampling.ban))) if first else outline.never
        size = 1 if first else min(left, PIECE) if stops is not None else left
        seed = int(mix(np.array([key], np.uint64) + np.uint64(at))[0] >> np.uint64(1)) if at else key >> 1
        ids = [*context.tolist(), *tokens]
        said = await speaker.speak(Piece(ids, size, seed, sampling, never, outline.ends, kept), count)
        count(len(said.tokens))
        if not said.tokens:
            break  # nothing more is to be had
        old = len(tokens)
        tokens += said.tokens
        logp += said.logp
        version += said.version
        alternatives += said.kept
        ended, at = said.stopped, at + 1
        if stops is not None and (cut := _find_stop(tokens, old, stops)):
            del tokens[cut:], logp[cut:], version[cut:], alternatives[cut:]
            ended = True
    info: dict[str, Any] = {"ended": ended}
    if sampling.truncates:
        info["support"] = _pad([list(d) for d in alternatives], -1, np.int32)
    if sampling.top:
        best = [sorted(d.items(), key=lambda x: -x[1])[: sampling.top] for d in alternatives]
        info["top"] = _pad(
            [
                [i for i, _ in d]
                for d in best
            ],
            -1,
            np.int32,
        )
        info["top_logp"] = _pad(
            [
                [x for _, x in d]
                for d in best
            ],
            -np.inf,
            np.float32,
        )
    if sampling.ban and not sampling.truncates:
        info["ban"] = np.full((len(tokens), len(sampling.ban)), -1, np.int32)
        info["ban"][:1] = sampling.ban
    return Trace(np.array(tokens, np.int32), np.array(logp, np.float32), np.array(version, np.int64), info)


def _find_stop(tokens: Sequence[int], old: int, stops: Any) -> int:
    """Return the number of tokens at which a stop string is complete, searching after the first `old`; 0 if there is
    none."""
    for end in range(old + 1, len(tokens) + 1):
        window = np.array(tokens[max(0, end - stops.window) : end], np.int64)[None]
        if stops(window)[0]:
            return end
    return 0


def _pad(rows: Sequence[Sequence[Any]], fill: float, dtype: Any) -> Array:
    """Pad K lists of up to S entries to an array [K, S]."""
    out = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class Outside:
    """An engine that serves `speaker.role`, and roles that share its model, by the speaker; all other roles in this
    process.

    staleness: as in `Local`. In a resumed run, recorded answers to groups in flight are replayed, and unfinished calls
    are made again.
    """

    def __init__(self, speaker: Speaker, staleness: int) -> None:
        self.speaker, self.staleness = speaker, staleness
        self.local, self.journal = Local(staleness=staleness), Journal()
        self.seed, self.version = 0, 0
        self.models: Mapping[str, Any] = {}
        self.charge: Callable[[str, float], None] = self.local.charge

    def open(self, seed: int, charge: Callable[[str, float], None]) -> None:
        self.seed, self.charge = seed, charge
        self.local.open(seed, charge)

    def sync(self, models: Mapping[str, Any], version: int) -> None:
        self.models, self.version = models, version
        self.local.sync(models, version)

    def serves(self, role: str) -> bool:
        """Whether the speaker serves a role."""
        return self.models.get(role) is not None and self.models[role] is self.models.get(self.speaker.role)

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int, key: Sequence[object]
    ) -> list[Trace]:
        """Sample as `Engine.sample` does."""
        model = role_model(self.models, role)
        if not self.serves(role):
            return await self.local.sample(role, context, sampling, n, key=key)
        if not is_tokens(context):
            raise TypeError(f"the context of role {role!r} is {type(context).__name__}: expected token ids")
        name = self.journal.name("sample", key, context, sampling) if self.staleness else ""
        if name and (known := await self.journal.known(name)) is not None:
            return [Trace(**trace) for trace in known]
        outline = self.speaker.outline()
        self._check(context, sampling, outline)
        said: list[int] = []  # tokens of each piece
        rows = [
            say_row(context, sampling, int(k), outline, self.speaker, said.append) for k in keys(self.seed, *key, n=n)
        ]
        try:
            traces = [add_text(trace, model) for trace in await run_together(rows)]
        except BaseException:  # given up, or failed: what was said is paid for
            if said:
                self.charge("tokens", float(sum(said)))
            raise
        if name:
            self.journal.keep(CURRENT_GROUP.get(), name, [plain(t) for t in traces], asyncio.get_running_loop().time())
        self.charge("tokens", float(sum(len(t.action) for t in traces)))
        self.charge("prompt_tokens", float(n * len(context)))
        return traces

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]:
        """Score as `Engine.score` does: by the speaker if only `log_prob` of its own role is wanted and it can score,
        else here."""
        ask = ability(self.speaker, "read")
        if ask is None or not self.serves(role) or tuple(names) != ("log_prob",) or not is_tokens(context):
            return await self.local.score(role, context, action, names)
        outline = self.speaker.outline()
        if outline.never and outline.vocabulary > SMALL:  # what is never said has to be taken out of the sum
            return await self.local.score(role, context, action, names)
        name = self.journal.name("score", role, tuple(names), context, action) if self.staleness else ""
        if name and (known := await self.journal.known(name)) is not None:
            return dict(known)
        if not 1 <= len(context) < outline.limit - len(action):
            raise NoRoom(len(context), outline.limit, len(action) + 1)
        if wrong := [i for i in (*context.tolist(), *action.tolist()) if not 0 <= i < outline.vocabulary]:
            raise ValueError(f"a text to score has token {wrong[0]}: expected 0 to {outline.vocabulary - 1}")
        logp, never = await ask([*context.tolist(), *action.tolist()], outline.never)
        found = np.array(logp[len(context) - 1 :], np.float64)
        if outline.never:
            found -= np.log1p(-np.exp(np.array(never[len(context) - 1 :], np.float64)).sum(1))
        columns = {"log_prob": found.astype(np.float32)}
        if name:
            self.journal.keep(CURRENT_GROUP.get(), name, dict(columns), asyncio.get_running_loop().time())
        self.charge("scored_tokens", float(len(action) + len(context)))
        return columns

    def _check(self, context: Array, sampling: Sampling, outline: Outline) -> None:
        """Raise for calls that the other side cannot answer before anything is sent, as it cuts long contexts short and
        hangs on ids out of range."""
        if not 1 <= len(context) < outline.limit:
            raise NoRoom(len(context), outline.limit)
        if why := explain_refusal(sampling, outline.vocabulary):
            raise ValueError(f"sampling: {why}")
        for what, ids in (("a context has", context.tolist()), ("sampling.ban names", sampling.ban)):
            if wrong := [i for i in ids if not 0 <= i < outline.vocabulary]:
                raise ValueError(f"{what} token {wrong[0]}: expected 0 to {outline.vocabulary - 1}")
        if len({*sampling.ban, *outline.never}) >= outline.vocabulary:
            raise ValueError(f"sampling.ban names {len(sampling.ban)} tokens: expected one at least that may be said")

    # ---------------------------------------------------------------- what is in flight, for the store

    def saved(self) -> dict[str, Any]:
        return {"told": self.journal.answered, "local": self.local.saved()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.journal.load(saved["told"], {})
        self.local.load(saved["local"])

    def forget(self, asker: str) -> None:
        self.journal.forget(asker)
        self.local.forget(asker)
