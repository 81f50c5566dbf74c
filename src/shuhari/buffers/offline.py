"""Recorded data for controllers: a data set of whole episodes, from which transitions are drawn.

It requests no collection, so a stage may have no rollouts; a `mixture` combines it with a buffer of new rows. A draw is
a view of the whole data set in episode order, as for `replay`. Left out: data sets larger than memory.

Axes: `N` rows of the data set, including closing rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, Seed, Share, ShareBelow1, Size, check
from shuhari.buffers.drawing import proportional
from shuhari.buffers.recording import card_of, check_columns, digest, select_episodes
from shuhari.data import Array, code, nearest
from shuhari.events import Event, Loaded, StageStarted
from shuhari.kernel.registry import register
from shuhari.needs import decisions, role_model
from shuhari.ports import Ctx, Recording, ability
from shuhari.ports.declares import together
from shuhari.transforms.returns import credit

SPLITS = ("train", "test")


@register("buffer", "offline")
@dataclass
class Offline:
    """Offline RL: each step draws `draws` batches of `size` transitions from a recorded data set, and nothing is
    collected.

    Without `by`, each epoch visits every transition once in a new order. With it, they are drawn with replacement in
    proportion to w = value^`power`, or with a temperature T above 0 to w = exp(value / T), values scaled to [0, 1] over
    the data set (Hong et al. 2023, "Harnessing Mixed Offline RL Datasets via Trajectory Weighting", equation 6).

    Columns: those of the data set; `reward`, by the run's current weights; `action`; `logp`, unknown (NaN) except in
    rows of an exported replay buffer; `version` -1; `last` [N], the row where the episode ends; `return`, the reward of
    the whole episode; `to_go` [N, 1], the rewards from the decision on, discounted by `gamma` (without a bootstrap for
    cut episodes). The transform `returns` needs whole episodes and does not work on draws of transitions.

    At the first draw of a stage the event `Loaded` carries the whole data set, from which normalisers take their
    statistics; a resumed run, and each later stage, sends it again with `again`. Raises ValueError if the data set does
    not fit the task, or differs from the one that the run began with.
    """

    samples = False
    bootstraps = True
    data: Recording
    """The data set: `file`, `minari`, `played` by a scripted policy, or several `joined`."""
    size: Size = 256
    """Number of transitions in a batch."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    by: str = ""
    """Column by which transitions are drawn more often, such as `return` (the episode's total reward); "" takes each
    once an epoch."""
    power: float = 1.0
    """Exponent of the value of `by`: 0 draws all alike, above 1 prefers large values more; ignored with a
    temperature."""
    temperature: AtLeast0 = 0.0
    """Temperature of drawing by exp(value / temperature), values scaled to [0, 1]; small prefers the best, 0 draws by
    `power` instead."""
    episodes: Count = 0
    """Number of episodes to learn from, in a random order by `seed`, so that a smaller subset is part of a larger one;
    0: all."""
    test: ShareBelow1 = 0.0
    """Share of the episodes held out for evaluation."""
    gamma: Share = 1.0
    """Discount factor of the column `to_go` only; losses have their own."""
    role: str = "policy"
    """Role of the policy to which the actions are attributed; it maps recorded actions to the columns it would have
    stored."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    seed: Seed = 0
    """Seed of the choice of episodes, and of a data set that is `played`; independent of the run's seed."""
    name: str = "offline"
    """Name that seeds the random draws; give each buffer of a run its own."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"at": 0, "order": 0, "told": False, "digest": ""}
    )

    def __post_init__(self) -> None:
        check(self)
        if self.by == "" and (self.power != 1.0 or self.temperature):
            raise ValueError("offline: power and temperature weigh a column: name it with `by`")
        self.card: dict[str, Any] = {}  # of the training data, once loaded
        self._whole: dict[str, dict[str, Tensor]] = {}  # split -> columns
        self._priced: tuple[tuple[str, float], ...] = ()  # the reward weights used
        self._walk: tuple[int, Tensor] | None = None  # seed and order of this epoch

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((f"weight/{self.stream}", "last", "return", "to_go"), self.data)

    @property
    def unknown(self) -> str:
        return ability(self.data, "unknown")

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state["told"] = False  # models that are new in the stage have not received it

    def restart(self, ctx: Ctx) -> None:
        """Sends the data set again in a resumed run, to components that keep no memory of it."""
        if self.state["told"]:
            ctx.tell(Loaded(Batch(self._load_split("train", ctx)), again=True))

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        whole = self._load_split("train", ctx)
        if not self.state["told"]:
            again = self.state["digest"] != ""  # sent in an earlier stage
            self.state |= {"told": True, "digest": self.card["digest"]}
            ctx.problems.extend(() if again else ability(self.data, "odd"))
            ctx.tell(Loaded(Batch(whole), again))
        for i in range(self.draws):
            if self.by:
                rows = self._rows[proportional(self._weight, self.size, ctx.rng(self.name, i))]
            else:
                rows = self._next(ctx)
            yield Batch(whole, rows, stream=self.stream, full=True)

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]:
        """Yields one batch of the transitions of up to n episodes of `split` (`test`: the held-out ones)."""
        if split not in SPLITS:
            raise ValueError(f"offline: no split {split!r}; {nearest(split, SPLITS)}")
        whole = self._load_split(split, ctx)
        if whole:
            episode = torch.unique(whole["episode"], return_inverse=True)[1]
            rows = (whole["mask"].any(1) & (episode < n)).nonzero().squeeze(1)
            yield Batch(whole, rows, stream=self.stream, full=True)

    # ---------------------------------------------------------------- which rows

    def _next(self, ctx: Ctx) -> Tensor:
        """Returns the next `size` rows of the walk, continuing into the next epoch at its end."""
        state, n, pieces, want = self.state, len(self._rows), list[Tensor](), self.size
        while want:
            if state["at"] == 0 or state["at"] >= n:
                state["at"] = 0
                state["order"] = int(torch.randint(2**62, (), generator=ctx.rng(self.name, "order", len(pieces))))
            taken = self._rows[self._order(state["order"])[state["at"] : state["at"] + want]]
            pieces.append(taken)
            state["at"] += len(taken)
            want -= len(taken)
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _order(self, seed: int) -> Tensor:
        """Returns the order [n] of the epoch with this seed."""
        if self._walk is None or self._walk[0] != seed:
            self._walk = seed, torch.randperm(len(self._rows), generator=torch.Generator().manual_seed(seed))
        return self._walk[1]

    def _weights(self, whole: dict[str, Tensor]) -> Array:
        """Returns [n] the draw weight of each deciding row."""
        if self.by not in whole:
            message = f"the data set has no such column; {nearest(self.by, whole)}"
            raise ValueError(f"offline: buffer.by = {self.by!r}: {message}")
        x = whole[self.by][self._rows].double().reshape(len(self._rows), -1).sum(1).numpy()
        if self.temperature:
            low, high = np.nanmin(x), np.nanmax(x)
            w = np.exp((x - high) / max(high - low, 1e-12) / self.temperature)
        elif np.nanmin(x) < 0:
            raise ValueError(f"offline: buffer.by = {self.by!r}: its smallest value is {np.nanmin(x):g}, and a weight "
                             "is not negative: set a temperature")  # fmt: skip
        else:
            w = x**self.power
        w = np.where(np.isfinite(w), w, 0.0)  # unknown values are not drawn
        if not w.any():
            raise ValueError(f"offline: buffer.by = {self.by!r}: every weight is 0: nothing can be drawn")
        return w

    # ---------------------------------------------------------------- the data set

    def _load_split(self, split: str, ctx: Ctx) -> dict[str, Tensor]:
        """Returns the columns of a split (empty if nothing is held out), read once; the reward is recomputed if its
        weights have changed."""
        if not self._whole:
            columns = dict(self.data.read(ctx.task, self.seed))
            check_columns(columns, ctx.task.spaces(), "offline")
            n = int(columns["episode"].max()) + 1
            order = torch.from_numpy(np.random.default_rng(code("offline", self.seed)).permutation(n))
            held = round(self.test * n)
            if held >= n or self.episodes > n - held:
                raise ValueError(f"offline: the data set has {n} episodes, {held} of them held out: expected at least "
                                 f"{max(self.episodes, 1)} to learn from")  # fmt: skip
            kept = order[held:][: self.episodes or n]
            train = columns if len(kept) == n else select_episodes(columns, kept)
            whole = {"train": self._complete(train, ctx)}
            whole["test"] = self._complete(select_episodes(columns, order[:held]), ctx) if held else {}
            card = {**card_of(whole["train"], "reward"), "digest": digest(train)}
            card["return"]["weights"] = dict(_reward_weights(ctx))
            if self.state["digest"] not in ("", card["digest"]):
                raise ValueError(f"offline: the data set is not the one that the run began with: its digest is "
                                 f"{card['digest']}, and was {self.state['digest']}")  # fmt: skip
            self._rows = whole["train"]["mask"].any(1).nonzero().squeeze(1)
            if self.by:
                self._weight = self._weights(whole["train"])
            self.card, self._whole = card, whole  # set once all checks pass: else the next call would not raise
            self._priced = _reward_weights(ctx)
        elif self._priced != (now := _reward_weights(ctx)):  # a schedule has moved on
            self._whole = {k: self._put_rewards(x, ctx) if x else x for k, x in self._whole.items()}
            if self.by:
                self._weight = self._weights(self._whole["train"])
            self._priced = now
        return self._whole[split]

    def _complete(self, columns: dict[str, Tensor], ctx: Ctx) -> dict[str, Tensor]:
        """Adds the columns that the policy would have stored, and the trained reward."""
        out, mask = dict(columns), columns["mask"]
        if "taken" in out:
            out |= decisions(role_model(ctx.models, self.role), out.pop("taken"))
        out.setdefault("logp", torch.where(mask, torch.nan, 0.0))
        out.setdefault("version", torch.full(mask.shape, -1))
        out["id"] = (code(self.name) >> 8) + torch.arange(len(mask))
        out["episode"] = (code(self.name, "episode") >> 8) + out["episode"]
        return self._put_rewards(out, ctx)

    def _put_rewards(self, columns: dict[str, Tensor], ctx: Ctx) -> dict[str, Tensor]:
        """Adds the reward by the run's weights at this step, its sum over each episode, and the rewards to go."""
        reward = torch.zeros(columns["mask"].shape)
        for name, weight in _reward_weights(ctx):
            if f"reward/{name}" not in columns:
                known = [n.removeprefix("reward/") for n in columns if n.startswith("reward/")]
                raise ValueError(f"offline: [reward.weights] names {name!r}, which the data set does not have; "
                                 f"{nearest(name, known)}")  # fmt: skip
            reward += weight * columns[f"reward/{name}"]
        at = torch.unique(columns["episode"], return_inverse=True)[1]
        total = torch.zeros(int(at.max()) + 1).index_add_(0, at, reward.sum(1))[at]
        to_go = credit(Batch({**columns, "reward": reward}), None, self.gamma, 1.0, level="row")[0]
        to_go = to_go.masked_fill(total.isnan()[:, None], torch.nan)  # if one reward of the episode is unknown
        return {**columns, "reward": reward, "return": total, "to_go": to_go}


def _reward_weights(ctx: Ctx) -> tuple[tuple[str, float], ...]:
    """Returns the reward weights at this step."""
    return tuple((name, ctx.at(weight)) for name, weight in ctx.weights.items())
