"""The lowest layer: four calls for a training loop of your own. No recipe is needed.

    s = shuhari.session("causal", task="arithmetic", seed=0)
    batch = s.transform(s.sample(32, n=8), Advantage())
    s.forward_backward(batch, [Term(Clip())])
    s.optim_step(lr=3e-4)
    s.save_state("state")

Left out: a store, evaluation on a schedule, stages; a recipe has these (`shuhari.train`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from shuhari.batch import Batch
from shuhari.buffers.fresh import put_on_stream
from shuhari.config.evaluation import Evaluation
from shuhari.config.settings import Settings
from shuhari.config.stage import MICRO_BATCH, Role
from shuhari.data import EMPTY, Info, Number, Payload, Problem, Request, Sampling
from shuhari.events import Collected, Committed, Event
from shuhari.kernel import state
from shuhari.kernel.measure import Meter
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.learners.pieces import trained_parameters
from shuhari.loop import collect
from shuhari.loop.checks import check_weights, graded_columns
from shuhari.loop.context import Context
from shuhari.loop.evaluation import evaluate
from shuhari.loop.given import find_grader, make, name_terms, play_environment, write_down
from shuhari.loop.reward_names import read_names, write_names
from shuhari.loop.roles import cast_roles, load_weights, take_weights, weights
from shuhari.needs import role_model
from shuhari.ports import Transform, is_vector
from shuhari.rewards.weights import default_weights
from shuhari.rollouts.episode import Episode
from shuhari.store import checkpoint
from shuhari.store.folders import find_old, refuse_foreign, replace_folder
from shuhari.tasks.prompts import Prompts, to_problem
from shuhari.transforms import apply

DEFAULT = Sampling()
WRITTEN = ("tree.json", "tensors.safetensors", "tensors-*-of-*.safetensors")  # of a state


class Session:
    """A training loop of your own: models by role, an optimiser, the calls on them. `ctx` is what components see."""

    def __init__(self, ctx: Context, optimiser: Any, trains: tuple[str, ...]) -> None:
        self.ctx, self.optimiser, self.trains = ctx, optimiser, trains
        self._params = trained_parameters(ctx.models, trains, "the session")
        optimiser.bind(self._params)
        self._closed = False
        self.made: Any = None  # what it was made of, where that can be written down: `shuhari.load` makes it again
        self._built = dict(ctx.models)  # the roles that hear events: a clone stays as it is
        self._grads: list[Tensor | None] = [None] * len(self._params)
        self._meter = Meter()
        self._calls = {"at": 0, "sample": 0, "update": 0}  # problems taken; draws and gradients so far name their noise

    # ---------------------------------------------------------------- the four calls

    def sample(
        self, problems: int | Sequence[Problem | Payload | Mapping[str, Any]], n: int = 1, *,
        sampling: Sampling | None = None,
    ) -> Batch:  # fmt: skip
        """Sample n graded episodes of each problem: rows of decisions on the stream `rl`, in the order of the problems.

        problems: `Problem`s, prompts, mappings with `prompt` and the columns that a grader needs, or a number: so many
        of the task's next training problems (for lanes of environments: at least so many decisions).
        """
        ctx, vector, count = self.ctx, is_vector(self.ctx.rollout), isinstance(problems, int)
        if not (count or isinstance(problems, list | tuple)) or (problems < 1 if count else not problems) or n < 1:  # type: ignore[operator]
            message = "a number of problems or a list of them, and n, of at least 1"
            raise ValueError(f"sample was given {problems!r:.60} and n = {n}: expected {message}")
        if self._closed:
            raise RuntimeError("sample: the session is closed; open another with shuhari.session")
        self._calls["sample"] += 1
        ctx.set_threads()
        ctx.within, ctx.groups, ctx.problems = ("sample", self._calls["sample"]), [], []
        ctx.serve()
        if vector:
            if not isinstance(problems, int):
                raise TypeError("lanes of environments take the number of decisions that you want, not problems")
            kept, ctx.sampling = ctx.sampling, sampling or ctx.sampling
            try:
                batch = collect.collect_decisions(problems, ctx)
            finally:
                ctx.sampling = kept
        else:
            found = self._next(problems) if isinstance(problems, int) else [to_problem(p) for p in problems]
            asked = [Request(p, n, sampling) if sampling else Request(p, n) for p in found]
            batch = ctx.wait(collect.collect_groups(asked, ctx))
        self._tell(Collected(batch, tuple(ctx.latest)))
        return put_on_stream(batch, "rl")

    def forward_backward(self, batch: Batch, terms: Sequence[Term] | Mapping[str, Term]) -> Info:
        """Add the gradient of the weighted terms to the one accumulated since the last `optim_step`; return losses and
        infos.

        Denominators are those of this batch. A sequence of terms is named after their objectives.
        """
        named, ctx = name_terms(terms), self.ctx
        self._calls["update"] += 1
        ctx.set_threads()
        ctx.within = ("update", self._calls["update"])
        part = Part(self.trains, named, self.optimiser)
        batch = ctx.score(batch, part.needs)
        info = Loss(batch, part, "session", ctx, self._params, ctx.tokens).backward()
        for i, p in enumerate(self._params):
            have, new = self._grads[i], p.grad
            self._grads[i], p.grad = new if have is None else have if new is None else have + new, None
        self._meter.update(info)
        return info

    def optim_step(self, lr: Number | None = None) -> Info:
        """Update the parameters by the accumulated gradient and clear it; return infos so far, `grad_norm` and `lr`.

        lr: from now on; None keeps the optimiser's. Raises RuntimeError if there is no gradient, and
        FloatingPointError, with all parameters unchanged, if it is not finite.
        """
        if all(g is None for g in self._grads):
            raise RuntimeError("optim_step without a gradient: call forward_backward first")
        if lr is not None:
            self.optimiser.lr = lr
        for p, g in zip(self._params, self._grads, strict=True):
            p.grad = g
        self._grads = [None] * len(self._params)
        done, self._meter = _Done(self._meter.means()), Meter()
        info: Info = self.optimiser.step(done, self.ctx.count)
        self.ctx.step, self.ctx.version = self.ctx.step + 1, self.ctx.version + 1
        self.ctx.count = float(self.ctx.step)
        self._tell(Committed(self.ctx.step))
        return info

    def save_state(self, path: str | Path) -> Path:
        """Write weights, optimiser and all memory as the directory `path`, replacing an earlier state, and return the
        path. Raises FileExistsError if it holds anything else, RuntimeError between `forward_backward` and
        `optim_step`."""
        if any(g is not None for g in self._grads):
            raise RuntimeError("save_state with a gradient that is not applied yet: call optim_step first")
        ctx, path = self.ctx, Path(path)
        tree = {
            "models": weights(ctx.models),
            "memory": state.memory(self._parts()),
            "counts": {"step": ctx.step, "version": ctx.version, "row": ctx.next_row, "ticket": ctx.next_ticket},
            "calls": dict(self._calls),
            "salt": list(ctx.within),
            "ledger": dict(ctx.ledger),
            "names": write_names(ctx.reward_names),
            "made": self.made,
        }
        refuse_foreign(path, WRITTEN)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".new-{path.name}")
        refuse_foreign(new, WRITTEN)
        shutil.rmtree(new, ignore_errors=True)  # of a call that was killed
        checkpoint.write(new, tree)
        replace_folder(path, new, WRITTEN)
        return path

    # ---------------------------------------------------------------- beside them

    def load_state(self, path: str | Path) -> None:
        """Continue from a `save_state`: the same calls then give the same bits. The session must be made with the same
        arguments."""
        path, ctx = Path(path), self.ctx
        if not any((p / "tree.json").is_file() for p in (path, find_old(path))):
            raise FileNotFoundError(f"{path}: no state there: expected a folder that save_state has written")
        tree = checkpoint.read(find_old(path) if not path.exists() and find_old(path).exists() else path)
        load_weights(ctx.models, tree["models"])
        state.remember(self._parts(), tree["memory"])
        n = tree["counts"]
        ctx.step, ctx.version, ctx.next_row, ctx.next_ticket = n["step"], n["version"], n["row"], n["ticket"]
        ctx.count = float(ctx.step)
        ctx.ledger.clear()
        ctx.ledger.update(tree["ledger"])
        ctx.reward_names = read_names(tree["names"])
        self._calls, ctx.within = dict(tree["calls"]), tuple(tree["salt"])
        self._grads, self._meter = [None] * len(self._params), Meter()

    def transform(self, batch: Batch, *transforms: Transform) -> Batch:
        """Apply transforms: return the batch with the columns that they add; what they need is scored first."""
        return apply((make("transform", t) for t in transforms), batch, self.ctx)

    def evaluate(self, n: int = 256, *, samples: int = 1, split: str = "test") -> dict[str, float]:
        """Return held-out scores of the task's `score`, or of the rewards that are trained instead: `greedy`, and with
        `samples` > 1 also `mean` and `pass@k`."""
        measured, ctx = Evaluation(n=n, samples=samples, split=split), self.ctx
        ctx.serve()
        rollout: Any = Episode() if is_vector(ctx.rollout) else ctx.rollout
        return evaluate(ctx, measured, rollout).scores(measured)

    def clone(self, role: str, of: str = "policy") -> None:
        """Copy the current weights of a role to another, which takes no gradient (a reference, a teacher); if it
        exists, it gets the weights again. Raises ValueError for a role with parameters that the session trains, and for
        weights that do not fit."""
        models, source = self.ctx.models, role_model(self.ctx.models, of).module
        if role in models:
            trained = {id(p) for p in self._params}
            if any(id(p) in trained for p in models[role].module.parameters()):
                expected = f"expected a role that is none of, nor made of, {', '.join(self.trains)}"
                raise ValueError(f"clone was given the role {role!r}, which the session trains: {expected}")
            take_weights(models[role], source.state_dict(), f"the weights of {of!r} for role {role!r}")
            models[role].module.requires_grad_(False)
        else:
            cast_roles({role: Role(init=of, frozen=True)}, models, self.ctx.task, self.ctx.seed, EMPTY)

    @property
    def models(self) -> Mapping[str, Any]:
        return self.ctx.models

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong in rollouts and graders of the last `sample`: the first messages."""
        return tuple(self.ctx.problems)

    def close(self) -> None:
        """Close the event loop, and restore torch's number of threads."""
        self._closed = True
        self.ctx.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---------------------------------------------------------------- helpers

    def _parts(self) -> dict[str, Any]:
        ctx = self.ctx
        parts = {"task": ctx.task, "engine": ctx.engine, "rollout": ctx.rollout, "rewards": dict(ctx.rewards)}
        return {**parts, "models": dict(ctx.models), "optimiser": self.optimiser}

    def _tell(self, event: Event) -> None:
        for listener in state.listeners({**self._parts(), "models": self._built}):
            listener.observe(event)

    def _next(self, n: int) -> list[Problem]:
        source, at = self.ctx.task.problems("train"), self._calls["at"]
        size = source.size()
        if size == 0:
            raise ValueError("the session has no task, so no problems of its own: give sample a list of prompts")
        self._calls["at"] = at + n
        return [source[i if size is None else i % size] for i in range(at, at + n)]


def session(
    model: Any = "causal",
    *,
    models: Mapping[str, Any] = EMPTY,
    task: Any = None,
    rollout: Any = None,
    rewards: Any = EMPTY,
    weights: Mapping[str, float] = EMPTY,
    sampling: Sampling = DEFAULT,
    optimiser: Any = "adamw",
    trains: Sequence[str] = ("policy",),
    engine: Any = "local",
    seed: int = 0,
    threads: int = 0,
    tokens: int | None = MICRO_BATCH,
) -> Session:
    """Make a session: models, a task and an optimiser for a training loop of your own; all draws depend on `seed`.

    A component is given as an object, as a name, or as the table that a recipe would have: `session({"use": "causal",
    "hidden": 64}, task={"name": "arithmetic", "kind": "carry"})`. `model` plays `policy`; a path of a Hugging Face
    directory is a causal model. models: further roles. task: None is text without a grade. rollout: None is `single`,
    or `episode` if the task has environments. rewards: a function `f(prompts, completions, **columns)`, a list of them,
    or name -> function or component; `weights`: the weight of each reward name in the column `reward` (by default 1 for
    each grader that counts by itself; without any, for the task's `score`, of environments `task`). trains: the roles
    that the optimiser owns. threads: 0 keeps torch's. tokens: the largest padded micro-batch, None for no limit. Raises
    RecipeError for a mistake in a name or a table.
    """
    made_of = write_down({"models": {"policy": model, **models}, "task": task, "seed": seed})
    if isinstance(task, str | Mapping):
        task = Settings(given={"task": {"seed": seed}}).make_component("task", task, "task")
    made = Prompts() if task is None else task
    if isinstance(model, str | Path) and (Path(model).is_dir() or Path(model).suffix == ".gguf"):
        model = {"use": "causal", "path": str(model)}
    ctx = Context(seed, made, make("engine", engine), tokens, threads)
    try:
        functions = [rewards] if callable(rewards) else rewards
        if not isinstance(functions, Mapping):
            functions = {getattr(f, "__name__", f"reward{i}"): f for i, f in enumerate(functions)}
        graders = {name: find_grader(name, r) for name, r in functions.items()}
        ctx.rewards, ctx.sampling = graders, sampling
        ctx.weights = dict(weights) or default_weights(made, graders)
        roles = {name: Role(make("model", m)) for name, m in {"policy": model, **models}.items()}
        cast_roles(roles, ctx.models, made, seed, EMPTY)
        if rollout is None:
            rollout = "single" if made.spaces() is None and play_environment(made) is None else "episode"
        ctx.rollout = make("rollout", rollout)
        check_weights(ctx.weights, graded_columns(made, ctx.rollout, graders), "session")
        ctx.open({"session": (ctx.rollout, made)}, graders.values())
        opened = Session(ctx, make("optimiser", optimiser), tuple(trains))
        opened.made = made_of
        return opened
    except BaseException:
        ctx.close()
        raise


class _Done:
    """The interface that an optimiser uses, for a gradient that has been computed already."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def backward(self) -> Info:
        return self.info
