"""A language model of which no process holds more than its share and one layer: torch's FSDP2 around each layer of our
lean forward, on packed rows. All processes run the same program (SPMD): the same optimiser batches, of which each
differentiates its share, and the same steps.

    shards = Sharded.load(path, mesh, part, optimiser)
    info = shards.step(batch, ctx)
    shards.save(folder)

Weights, gradients and the optimiser's state are shards of `dtype`, float32 by default; `compute` = bfloat16 gathers and
multiplies in that type, over those masters. The embedding and the head are gathered for a whole forward and backward. A
recipe's `distributed.shard` runs this in further processes (`shard_team`, `shard_rank`). Left out: layouts other than
llama, mistral, qwen2 and qwen3, value heads, adapters, sampling, and meshes of other devices than CPUs and CUDA.

Axes: `B` rows, `N` tokens, `D` hidden.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.config.distributed import KINDS
from shuhari.data import Info, nearest
from shuhari.distributed.devices import find_missing
from shuhari.distributed.shard_files import Shards, Weights, finish, write_part
from shuhari.distributed.shares import cut_shares
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part
from shuhari.learners.pieces import Meters, Pieces, scatter
from shuhari.models.text import layouts, pretrained
from shuhari.models.text.causal import Causal
from shuhari.models.text.clean import checked_copy, forget
from shuhari.models.text.folder import check_config, check_tokenizer
from shuhari.models.text.trunk import Trunk
from shuhari.needs import packs
from shuhari.ports import Ctx
from shuhari.store import codec

dist: Any = torch.distributed  # not all of whose names are declared


class Lean:
    """The lean forward of a sharded model, with the interface that `Trunk` uses. Each layer gathers its weights as it
    runs, so `live` returns none."""

    def __init__(self, lm: Any) -> None:
        self.lm, self.scale = lm, lm.lean_scale

    def live(self, dtype: torch.dtype | None = None) -> None:
        """Return None; see the class."""

    def hidden(self, w: None, *args: Any, **more: Any) -> Tensor:
        """Return the hidden states, as `layouts.Lean.hidden` does."""
        found: Tensor = self.lm.lean_hidden(*args, **more)
        return found


class Sharded:
    """A sharded model, and the part that trains it. All processes of `mesh` make every call; `mesh` is a device mesh of
    one axis, of CPUs or of CUDA, and each process has set its GPU before. Raises ValueError for another mesh, and if
    CUDA or NCCL is missing."""

    def __init__(self, model: Causal, mesh: Any, part: Part) -> None:
        check_mesh(mesh)
        self.model, self.mesh, self.part = model, mesh, part
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self.named = dict(model.module.lm.named_parameters())
        self.shards = {name: nn.Parameter(p.to_local().detach()) for name, p in self.named.items()}
        self.own(part)

    @classmethod
    def load(cls, path: Path, mesh: Any, part: Part, *, recompute: bool = False, dtype: torch.dtype = torch.float32,
             compute: torch.dtype | None = None, context: int = 0, weights: Path | None = None) -> Sharded:  # fmt: skip
        """Load the model of a Hugging Face directory; each process reads its rows of the weights. `weights`: a folder
        of `save`, of any number of processes, whose weights and optimiser state are loaded instead. Raises ValueError
        for a layout that is not supported."""
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        check_mesh(mesh)
        check_config(path)
        check_tokenizer(path)
        with checked_copy(path) as copied:
            config = AutoConfig.from_pretrained(str(copied), trust_remote_code=False, local_files_only=True)
            lm = make_sharded(config, mesh, dtype, compute)
            if (copied / "generation_config.json").is_file():
                lm.generation_config = GenerationConfig.from_pretrained(str(copied), local_files_only=True)
            hf = AutoTokenizer.from_pretrained(str(copied), trust_remote_code=False, local_files_only=True)
            forget(copied, path, lm, hf)
        text = pretrained._tokenizer(hf, lm, path)
        made = cls(make_model(lm, text, context, recompute, str(path)), mesh, part)
        made._read(Weights(path) if weights is None else Shards(weights), "" if weights is None else "weights/")
        if weights is not None:
            made._read_optimiser(Shards(weights))
        return made

    # ---------------------------------------------------------------- training

    def own(self, part: Part) -> None:
        """Have a part's optimiser step the shards."""
        part.optimiser.share(self.add_up)  # type: ignore[attr-defined]
        part.optimiser.bind(list(self.shards.values()))

    def step(self, batch: Batch, ctx: Ctx, tokens: int | None = None) -> Info:
        """Make one optimiser step on the loss of a batch, which is the same in all processes; `ctx.models` has the
        model."""
        ctx.team = self
        loss = Loss(batch, self.part, "policy", ctx, list(self.shards.values()), tokens, None, ("main", "policy"))
        return self.part.optimiser.step(loss, ctx.count)

    def takes(self, batch: Batch, params: Sequence[Tensor]) -> bool:
        """Return True (`learners.pieces.Team`): no process has a whole copy to differentiate."""
        return True

    def spread(self, pieces: Pieces, place: tuple[str, str]) -> Spread:
        return Spread(self, pieces)

    def settle(self) -> None:
        """Do nothing: the shards are the weights."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def add_up(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        dist.all_reduce(x, group=self.mesh.get_group())
        return x

    def tell_all(self, tree: Any) -> list[Any]:
        """Gather plain data from all processes, and return it by rank."""
        data, at = torch.frombuffer(bytearray(codec.dumps(tree)), dtype=torch.uint8), self.mesh.device_type
        sizes = torch.zeros(self.size, dtype=torch.long, device=at)
        sizes[self.rank] = len(data)
        longest = int(self.add_up(sizes).max())
        sent = torch.zeros(longest, dtype=torch.uint8, device=at)
        sent[: len(data)].copy_(data)
        got = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(got, sent, group=self.mesh.get_group())
        return [codec.loads(x[: int(n)].cpu().numpy().tobytes(), 2**40) for x, n in zip(got, sizes, strict=True)]

    # ---------------------------------------------------------------- saving

    def save(self, path: Path) -> None:
        """Write weights and optimiser state as the folder `path`, each process its own part; the folder is complete or
        absent."""
        state = self.part.optimiser.state  # type: ignore[attr-defined]
        kept = {f"optimiser/{kind}/{n}": own[str(i)] for kind, own in state.items() if kind != "steps"
                for i, n in enumerate(self.shards)}  # fmt: skip
        tensors = {f"weights/{n}": p.detach() for n, p in self.shards.items()} | kept
        begins = {name: self.find_range(name.rpartition("/")[2])[0] for name in tensors}
        written = path.with_name(f".tmp-{path.name}")
        write_part(written, self.rank, self.size, tensors, begins)
        dist.barrier(group=self.mesh.get_group())
        if self.rank == 0:
            finish(written, path, self.size, {"steps": dict(zip(self.shards, state["steps"].tolist(), strict=True))})
        dist.barrier(group=self.mesh.get_group())

    @torch.no_grad()
    def _read(self, source: Weights | Shards, prefix: str) -> None:
        for name, shard in self.shards.items():
            found = source.read(prefix + name, *self.find_range(name))
            if found.shape != shard.shape:
                raise ValueError(f"{source.path}: rows of {name} are {tuple(found.shape)}: "
                                 f"expected {tuple(shard.shape)}")  # fmt: skip
            shard.copy_(found)

    def _read_optimiser(self, source: Shards) -> None:
        optimiser: Any = self.part.optimiser
        steps = [source.about["steps"][name] for name in self.shards]
        tree: dict[str, Any] = {"steps": torch.tensor(steps)}
        of = "optimiser/" if source.about["format"] > 1 else ""
        for kind in optimiser.state.keys() - {"steps"}:
            read = {n: source.read(f"{of}{kind}/{n}", *self.find_range(n)) for n in self.shards}
            tree[kind] = {str(i): x for i, x in enumerate(read.values())}
        optimiser.state = tree

    def find_range(self, name: str) -> tuple[int, int]:
        """Return the first row that this process has of a parameter, and how many."""
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        p = self.named[name]
        shape, first = compute_local_shape_and_global_offset(p.shape, self.mesh, p.placements)
        return int(first[0]), int(shape[0])


class Spread:
    """The pieces of one optimiser batch; each process computes its share (`learners.pieces.Work`). All processes run
    equally many pieces, as each run gathers weights: one with fewer pieces, or no row at all, runs its first piece
    again and drops the result."""

    def __init__(self, team: Sharded, pieces: Pieces) -> None:
        self.team, self.whole = team, pieces
        packed = packs(pieces.part.live, pieces.ctx.models)
        few = min(team.size, len(pieces.batch))
        self.rows = cut_shares(pieces.batch, few, packed=packed)
        self.rows += [self.rows[0][:0]] * (team.size - few)
        own = self.rows[team.rank]
        self.mine = pieces.share(own if len(own) else self.rows[0])
        self.due = len(self.mine.pieces) if len(own) else 0
        self.runs = max(int(x) for x in team.tell_all(self.due))

    @torch.no_grad()
    def columns(self) -> dict[str, Tensor]:
        """Return the live columns (recomputed at each optimiser step) of the whole optimiser batch, without
        gradient."""
        pieces = [*self.mine.pieces[: self.due], *[self.mine.pieces[0]] * (self.runs - self.due)]
        scores = [self.mine.live(piece) for piece in pieces]
        order = torch.cat([piece["_row"] for piece in pieces[: self.due]] or [self.rows[0][:0]]).argsort()
        mine = {
            k: torch.cat([scores[0][k][:0], *(s[k] for s in scores[: self.due])])[order]
            for k in scores[0]
        }
        scored = self.team.tell_all(mine)
        order = torch.cat(self.rows).argsort()
        return {
            k: torch.cat([s[k] for s in scored])[order]
            for k in scored[0]
        }

    def gradient(
        self, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters
    ) -> list[Tensor | None]:
        """Return the gradients as `Pieces.gradient` does, for this process's shards, summed over all rows."""
        named, own = self.team.named, Meters()
        for i in range(self.runs):
            idle = i >= self.due
            piece = self.mine.pieces[0 if idle else i]
            columns = self.mine.live(piece)  # once: each forward gathers, and all processes gather as often
            loss = None if idle else self.mine.piece(piece, terms, upstream, own, columns)
            if loss is None:  # it gathers and gives no gradient
                loss = sum((x.nan_to_num(0, 0, 0).sum() * 0 for x in columns.values()), torch.zeros(()))
            loss.backward()
        grads = [None if p.grad is None else p.grad.to_local() for p in named.values()]
        for p in named.values():
            p.grad = None
        infos = [(*key, float(total), float(n)) for key, (total, n) in own.infos.items()]
        mine = {"losses": {t: float(x) for t, x in own.losses.items()}, "infos": infos,
                "stamps": {k: x[self.rows[self.team.rank]] for k, x in self.whole.into.stamps.items()}}  # fmt: skip
        for found, rows in zip(self.team.tell_all(mine), self.rows, strict=True):
            meter.join(found["losses"], found["infos"])
            scatter(found["stamps"], self.whole.into, rows)
        return grads

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """Raise NotImplementedError: gathered weights have no second derivative."""
        raise NotImplementedError("a Hessian-vector product of a model in shards: expected an optimiser of first order")


# ------------------------------------------------------------------------------------------------ the model


def check_mesh(mesh: Any) -> None:
    """Raise ValueError for a mesh of other devices than CPUs or CUDA, and for a CUDA mesh if CUDA is missing."""
    if mesh.device_type not in ("cpu", "cuda"):
        raise ValueError(f"a model in shards on a mesh of {mesh.device_type!r}: expected one of 'cpu' or 'cuda'")
    if mesh.device_type == "cuda" and (missing := find_missing(0, 1)):
        raise ValueError(f"a model in shards on a mesh of 'cuda': {missing}: expected a mesh of 'cpu', over gloo")


def make_model(lm: Any, text: Any, context: int, recompute: bool, path: str = "") -> Causal:
    """Return the result of `make_sharded` as a model that scores; `text`: its tokenizer."""
    model = Causal(path=path)
    model.module = Trunk(lm, 0, context, recompute, lean=Lean(lm))  # type: ignore[arg-type]
    model.text = text
    return model


def make_sharded(
    config: Any, mesh: Any, dtype: torch.dtype, compute: torch.dtype | None, limit: int | None = None
) -> Any:
    """Make a Hugging Face model of which this process holds its shards, with weights not set yet. `limit`: the longest
    row that it reads, None: as its configuration has it."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
    from transformers import AutoModelForCausalLM

    if config.model_type not in KINDS:
        message = f"layout {config.model_type!r} cannot be in shards; {nearest(config.model_type, KINDS)}"
        raise ValueError(message)
    lean = _make_lean(config, AutoModelForCausalLM, dtype, limit)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype)
    added = dtype if compute else None
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=added, cast_forward_inputs=False)
    blocks = list(lm.base_model.layers)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(lm, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    lm.to_empty(device=mesh.device_type)
    lm.base_model.rotary_emb = type(lm.base_model.rotary_emb)(config=config).to(mesh.device_type)
    for module in lm.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)  # gradients are sums: denominators are those of the whole batch
    lean.lm, lean._base, lean._blocks, lean.layers = lm, lm.base_model, blocks, len(blocks)
    lean._padding = lm.base_model.get_input_embeddings().padding_idx
    for block in blocks:
        block.lean = types.MethodType(_run_block(lean, block), block)
        register_fsdp_forward_method(block, "lean")
    run: Any = copy.copy(lean)
    run._layer = lambda i, block, x, turn, attend, keep: block.lean(i, x, turn, attend, keep)

    def hidden(self: Any, *args: Any, **more: Any) -> Tensor:
        base, empty = self.base_model, layouts.Linear(torch.empty(0))
        tokens, last = base.get_input_embeddings().weight, (base.norm.weight, None)
        weights = layouts.Weights(tokens, None, tuple(blocks), last, empty)
        found: Tensor = run.hidden(weights, *args, **more)
        return found

    lm.lean_hidden, lm.lean_scale = types.MethodType(hidden, lm), lean.scale
    register_fsdp_forward_method(lm, "lean_hidden")
    return lm


def _run_block(lean: layouts.Lean, block: nn.Module) -> Any:
    """Return a method of one block: its part of the lean forward, over the weights that are gathered for the call."""
    one: Any = copy.copy(lean)
    one._blocks = [block]

    def run(self: nn.Module, i: int, x: Tensor, turn: Any, attend: layouts.Attend, keep: Tensor | None) -> Tensor:
        w = one.live().layers[0]
        if w.before[0].dtype != x.dtype:  # norms compute in the type of the stream between layers
            wide = {n: None if getattr(w, n) is None else getattr(w, n).to(x.dtype) for n in ("of_q", "of_k")}
            norms = {n: (getattr(w, n)[0].to(x.dtype), None) for n in ("before", "between")}
            w = replace(w, **wide, **norms)
        found: Tensor = one._layer(i, w, x, turn, attend, keep)
        return found

    return run


def _make_lean(config: Any, make: Any, dtype: torch.dtype, limit: int | None) -> layouts.Lean:
    """Return the lean forward of this layout, after comparing it with the model's own on a net of one narrow layer."""
    small = copy.deepcopy(config)
    small.num_hidden_layers, small.intermediate_size, small.vocab_size = 1, 8, 32
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    if kinds := small.to_dict().get("layer_types"):
        small.layer_types = kinds[:1]
    try:
        return layouts.Lean(make.from_config(small, dtype=dtype), limit)
    except layouts.Unknown as unknown:
        raise ValueError(f"a model of layout {config.model_type!r} that cannot be in shards: {unknown}") from None
