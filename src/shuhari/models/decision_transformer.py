"""Decision Transformer: a causal transformer over returns to go, states and actions, which chooses the action that
fits a given return.

Source: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling" (arXiv 2106.01345), and
the authors' code for Gym. A decision sees a window of at most K steps, the tokens R_1, s_1, a_1, ..., R_K, s_K (a_K);
the action of a step is read from its state's token. In play each reward is subtracted from the return that is
given. Left out: dropout, heads for states and returns (which the paper does not train), joint choices.

Axes: `B` rows, `W` steps of a window (the setting `window`, K in the paper), `D` features of a state, `A` numbers of an
action, `H` numbers of a token, `S` of a memory, `N` rows of a data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.recall import MEMORY, climb, part_memory
from shuhari.kernel.registry import register
from shuhari.models.categorical import SUPPORTED, Categorical, sample_rows, score_rows
from shuhari.models.deterministic import Clipped
from shuhari.models.sampling import honour
from shuhari.models.spaces import Choices, Inputs, Scale, box, discrete, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


@dataclass(frozen=True, eq=False)
class Window:
    """The last W steps before decisions: to_go [B, W], features [B, W, D], actions [B, W, A] (that of the last step is
    not known if it is still to be decided), times [B, W] since the start of the episode, and which are there."""

    to_go: Tensor
    features: Tensor
    actions: Tensor
    times: Tensor
    there: Tensor


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer normalisation and added to what came in, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """x [B, L, H]; seen [B, 1, L, L]: what each place may see."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.attend(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.relu(self.up(self.between(x))))
        return out


class Sequence(nn.Module):
    """A window -> [B, W, out], read from the tokens of the states."""

    def __init__(
        self, inputs: Inputs, actions: int, out: int, width: int, layers: int, heads: int, longest: int
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.time = nn.Embedding(longest, width)
        self.to_go, self.action = nn.Linear(1, width), nn.Linear(actions, width)
        self.state = nn.Linear(inputs.size, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, out)

    def tokens(self, w: Window) -> Tensor:
        """[B, 3W, H] in the order R_1, s_1, a_1, R_2, ..."""
        time = self.time(w.times.clamp(max=self.time.num_embeddings - 1))
        each = self.to_go(w.to_go.unsqueeze(-1)) + time, self.state(w.features) + time, self.action(w.actions) + time
        x: Tensor = self.norm(torch.stack(each, 2).flatten(1, 2))
        return x

    def forward(self, w: Window) -> Tensor:
        x = self.tokens(w)
        L = x.shape[1]
        seen = torch.ones(L, L, dtype=torch.bool).tril() & w.there.repeat_interleave(3, 1)[:, None]
        seen = (seen | torch.eye(L, dtype=torch.bool)).unsqueeze(1)  # what is not there sees itself: nothing is NaN
        for block in self.blocks:
            x = block(x, seen)
        out: Tensor = self.head(self.last(x).unflatten(1, (-1, 3))[:, :, 1])
        return out


class Windowed:
    """The decisions of rows, each at the end of its window. Methods answer [B, K]; after `at`, [N]."""

    __slots__ = ("_window", "decisions")

    def __init__(self, decisions: Categorical | Clipped, window: Callable[[], Tensor]) -> None:
        self.decisions, self._window = decisions, window

    def log_prob(self) -> Tensor:
        return self.decisions.log_prob()

    def mode(self) -> Tensor:
        return self.decisions.mode()

    def parameters(self) -> Tensor:
        return self.decisions.parameters()

    def window(self) -> Tensor:
        """How well all decisions of a row's window are met, a mean over its steps: the log-probability of choices,
        minus the mean square error of actions in a Box (the paper's losses with the other sign; as released, the mean
        is over all steps of all windows, so that the first steps of an episode, whose windows are short, weigh
        less)."""
        return self._window()

    def at(self, index: Tensor) -> Windowed:
        """The decisions `index` [N] of the flattened [B * K]."""
        return Windowed(self.decisions.at(index), lambda: self._window().flatten()[index])


@register("model", "decision_transformer")
@dataclass
class DecisionTransformer:
    """A Decision Transformer: a policy conditioned on a desired return, trained on recorded episodes by imitation.

    Train it by `terms.nll = {score = "window"}` on the rows of the buffer `offline`, whose column `to_go` (with its
    `gamma` of 1) is what the return yet to come was; the loss of a row is that of all the decisions in the window that
    ends there. Actions are Discrete, drawn as by `categorical`, or of a bounded Box, as by `deterministic`.

    In play it begins with `target`, from which the rollouts `vector` and `episode` subtract each reward, weighed as the
    run weighs it; its window is its memory (see `kernel.recall`). TypeError for other spaces of actions."""

    target: float = 0.0
    """Desired return at the start of an episode, in the unit of the trained reward."""
    scale: Positive = 1.0
    """Number that returns are divided by before they become tokens; of the size of a large return."""
    window: Length = 20
    """Number of steps that a decision sees, its own among them (K in the paper)."""
    width: Width = 128
    """Numbers of a token; a multiple of `heads`."""
    layers: Length = 3
    """Number of layers."""
    heads: Length = 1
    """Number of heads that each layer attends with."""
    longest: Length = 1000
    """Number of steps that have a place of their own in an episode; those behind share the last one's."""
    noise: AtLeast0 = 0.1
    """Standard deviation of the noise on actions of a Box that are not greedy, in units of half their range."""
    normalise: bool = True
    """Normalise observations by the mean and variance of the data set."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            fits = -(-self.width // self.heads) * self.heads
            raise ValueError(f"decision_transformer: width is {self.width} and heads {self.heads}: expected a "
                             f"multiple, such as {fits}")  # fmt: skip
        self._depth: tuple[Tensor, Tensor] | None = None  # of the data set that was last scored: its `child`, depths

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "decision_transformer")
        self._inputs = Inputs(seen, "decision_transformer", self.normalise, see=self.see)
        self._scale: Scale | None = None
        self._choices: Any = None
        if isinstance(does, spaces.Box):
            self._scale = Scale(box(does, "action", "decision_transformer", bounded=True))
            self._n = int(does.shape[0])
        else:
            self._choices = Choices.of(discrete(does, "action", "decision_transformer"), "decision_transformer")
            self._n = self._choices.size
        sizes = self._n, self._n, self.width, self.layers, self.heads, self.longest
        self.module = Sequence(self._inputs, *sizes)

    # ---------------------------------------------------------------- scoring

    def __call__(self, batch: Batch) -> Windowed:
        """ValueError for rows that have neither a memory nor returns yet to come."""
        mask, window = self._inputs.mask(self._inputs.of(batch)), self._find(batch)
        out = self.module(window)
        decisions: Categorical | Clipped
        if self._scale is None:
            logits, allowed = self._choices.spread(out[:, -1], mask)
            decisions = score_rows(logits, batch, allowed)
        else:
            mean = out[:, -1:].tanh()
            decisions = Clipped(mean, self._log_std(mean), batch["action"].view_as(mean))

        def meet() -> Tensor:
            if self._scale is None:
                each = (out.log_softmax(-1) * window.actions).sum(-1)  # actions are one-hot
            else:
                each = -(out.tanh() - window.actions).square().mean(-1)
            return ((each * window.there).sum(1) / window.there.sum(1))[:, None]

        return Windowed(decisions, meet)

    def _find(self, batch: Batch) -> Window:
        """The windows of rows: from their memories if they were collected, else from the rows before them."""
        if MEMORY in batch:
            state = batch[MEMORY].flatten(1)
            action = self._code(batch["action"])
            return self._recall(state, self._inputs(self._inputs.of(batch)), action)
        whole = batch.base
        if "to_go" not in whole:
            raise ValueError("decision_transformer: the rows have neither a memory nor the column 'to_go', which the "
                             "buffer 'offline' writes: it learns from recorded episodes")  # fmt: skip
        at = torch.arange(len(whole)) if batch.rows is None else batch.rows
        parent, rows, there = whole["parent"], [at], [torch.ones(len(at), dtype=torch.bool)]
        for _ in range(self.window - 1):
            up = parent[rows[-1]]
            there.append(there[-1] & (up >= 0))
            rows.append(torch.where(up >= 0, up, rows[-1]))
        index = torch.stack(rows[::-1], 1)  # [B, W], the row itself last
        flat = whole.take(index.flatten())
        to_go = flat["to_go"].view(index.shape)
        if bool(to_go.isnan().any()):
            raise ValueError("decision_transformer: some returns to go are NaN: expected known rewards of whole "
                             "episodes")  # fmt: skip
        features = self._inputs(self._inputs.of(flat)).view(*index.shape, -1)
        actions = self._code(flat["action"]).view(*index.shape, -1)
        return Window(to_go / self.scale, features, actions, self._depths(whole)[index], torch.stack(there[::-1], 1))

    def _depths(self, whole: Batch) -> Tensor:
        """[N] how many steps came before each row in its episode."""
        if self._depth is None or self._depth[0] is not whole["child"]:
            parent = whole["parent"]
            here = torch.arange(len(parent))
            self._depth = whole["child"], climb(torch.where(parent < 0, here, parent))[1]
        return self._depth[1]

    def _code(self, action: Tensor) -> Tensor:
        """[B, A] as tokens are made of: one-hot, or the numbers of a Box in [-1, 1]."""
        if self._scale is not None:
            return action.reshape(len(action), -1)
        return F.one_hot(action.long().view(-1), self._n).float()

    def _log_std(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, max(self.noise, 1e-6)).log()

    # ---------------------------------------------------------------- play

    @property
    def memory(self) -> int:
        """S: the number of steps so far, the return yet to come, and W - 1 steps of returns, features and actions."""
        return 2 + (self.window - 1) * (1 + self._inputs.size + self._n)

    def rewarded(self, memory: Any, reward: Any) -> Any:
        """What it remembers [..., S] once it was paid `reward` [...] for its last decision."""
        memory = memory.clone() if isinstance(memory, Tensor) else memory.copy()
        memory[..., 1] -= reward
        return memory

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """contexts [B, ...] with the memory [B, S] of each -> action [B] or [B, A], logp [B, 1], `taken`, and the
        `memory` after the decision, before its reward. ValueError for contexts without a memory."""
        honour(sampling, SUPPORTED if self._scale is None else ("greedy",), "decision_transformer")
        seen, memory = part_memory(contexts)
        if memory is None:
            raise ValueError("decision_transformer: it got no memory, which holds its window of past steps: use it in "
                             "the rollouts 'vector' or 'episode', or by `predict` of a loaded policy")  # fmt: skip
        if memory.shape[-1] != self.memory:
            raise ValueError(f"decision_transformer: a memory of {memory.shape[-1]} numbers: expected {self.memory}, "
                             f"of a window of {self.window} steps")  # fmt: skip
        with torch.no_grad():
            features = self._inputs(seen)
            unknown = features.new_zeros(len(features), self._n)
            window = self._recall(memory, features, unknown)
            out = self.module(window)[:, -1]
            if self._scale is None:
                logits, allowed = self._choices.spread(out, self._inputs.mask(seen))
                drawn = sample_rows(logits, sampling, noise, self._choices.start, allowed)
            else:
                mean = action = out.tanh()
                if not sampling.greedy:
                    action = (mean + self.noise * noise.normal(0, self._n)).clamp(-1, 1)
                made = Clipped(mean[:, None], self._log_std(mean[:, None]), action[:, None])
                drawn = Traces(action, made.log_prob(), taken=self._scale(action))
            return replace(drawn, memory=self._keep(memory, window, self._code(drawn.action)))

    def _recall(self, memory: Tensor, features: Tensor, action: Tensor) -> Window:
        """The windows that memories [B, S] and the present step make."""
        parts = [1, self._inputs.size, self._n]
        to_go, seen, done = memory[:, 2:].reshape(len(memory), self.window - 1, sum(parts)).split(parts, -1)
        time = memory[:, 0].long()
        back = torch.arange(1 - self.window, 1)  # of the present step 0
        now = self._asked(memory)[:, None] / self.scale
        return Window(
            torch.cat([to_go[..., 0], now], 1), torch.cat([seen, features[:, None]], 1),
            torch.cat([done, action[:, None]], 1), (time[:, None] + back).clamp(min=0), time[:, None] + back >= 0,
        )  # fmt: skip

    def _asked(self, memory: Tensor) -> Tensor:
        """[B] the return to go: the desired return less the rewards so far."""
        return memory[:, 1] + self.target

    def _keep(self, memory: Tensor, w: Window, action: Tensor) -> Tensor:
        """The memories after a decision: one step more, and the oldest one forgotten."""
        now = torch.cat([w.to_go[:, -1:], w.features[:, -1], action], 1)
        before = memory[:, 2:]
        steps = torch.cat([before, now], 1)[:, now.shape[1] :]
        return torch.cat([memory[:, :1] + 1, memory[:, 1:2], steps], 1)

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": taken - (self._choices.start or 0) if self._scale is None else self._scale.inverse(taken)}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)
