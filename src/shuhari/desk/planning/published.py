"""Published speed-ups of asynchronous RL, and the planner's predictions for their settings.

Each case has its source and a list of `assumed` inputs. The others follow from the data sheets of model and device by
the same constants for all cases (`SHARE_TRAIN` and so on), which were fixed before the first comparison and not changed
since. If the parts of a synchronous step are published, a second prediction takes the speeds from them, as the planner
does with a user's run. Devices are those of the publications; nothing was rerun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shuhari.desk.planning.choose import Scale, scale
from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.setting import Setting
from shuhari.desk.planning.simulate import simulate
from shuhari.desk.planning.workload import Workload, lognormal

SHARE_TRAIN = 0.35  # of the peak rate of matrix products, for dense models; also for prompts
SHARE_MIXTURE = 0.15  # the same for a mixture of experts
SHARE_MEMORY = 0.5  # of the memory's rate, for a decoder reading weights and cache
LAUNCH = 0.005  # further seconds of a decoding step
SPREAD = 1.0  # of lengths: coefficient of variation, log-normal
SLOTS = 256  # rows of a replica
NETWORK, HOP = 2e10, 1e-4  # bytes a second when sending weights; seconds a hop
BESIDES = 5.0  # seconds a step: data, rewards, logs
PASSES = 8.0  # training FLOPs per token and parameter, with activation recomputation layer by layer
STEPS = 10


@dataclass(frozen=True)
class Device:
    """Peak of dense bfloat16 products a second, and bytes of memory read a second."""

    flops: float
    memory: float


H100 = Device(989e12, 3.35e12)  # H800 is the same
H20 = Device(148e12, 4.0e12)


@dataclass(frozen=True)
class Model:
    """Parameters, active parameters a token, and bytes of keys and values a token, all in bfloat16."""

    parameters: float
    active: float
    cache: float

    @property
    def share(self) -> float:
        return SHARE_TRAIN if self.parameters == self.active else SHARE_MIXTURE


@dataclass(frozen=True)
class Case:
    """A published measurement. `fast` is the faster setting, compared with synchronous training on all `devices`;
    `speedup` the published one, `seconds` those of a step of both (None: not published). `scored`: whether the
    synchronous one, and the faster one, runs a forward for log-probabilities. `parts`: seconds of a synchronous step,
    if published: `sampling`, `learning` (with the scoring), `besides`."""

    name: str
    source: str
    device: Device
    model: Model
    devices: int
    replica: int
    groups: int
    n: int
    prompt: int
    mean: float
    limit: int
    updates: int
    fast: Setting
    speedup: float
    seconds: tuple[float | None, float | None]
    scored: tuple[bool, bool] = (True, True)
    assumed: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

    def workload(self) -> Workload:
        return lognormal(self.mean, limit=self.limit, read=self.prompt, n=self.n, cv=SPREAD)

    def hardware(self, scored: bool) -> Hardware:
        """Return the costs by the data sheets."""
        d, m, k = self.device, self.model, self.replica
        token = m.active / (d.flops * m.share)
        return Hardware(
            step=LAUNCH + 2 * m.parameters / (k * d.memory * SHARE_MEMORY),
            row=2 * token / k,
            cached=m.cache / (k * d.memory * SHARE_MEMORY),
            read=2 * token / k,
            slots=SLOTS,
            replica=k,
            train=(PASSES + 2 * scored) * token,
            updates=self.updates,
            weights=2 * m.parameters,
            bandwidth=NETWORK,
            latency=HOP,
            fixed=BESIDES,
        )

    @property
    def slow(self) -> Setting:
        return Setting("sync", self.devices, self.devices, groups=self.groups, steps=4)


@dataclass(frozen=True)
class Predicted:
    """A prediction for a case: seconds of a step of both settings, and their ratio; `by`: the source of the speeds;
    `error`: of the speed-up."""

    case: Case
    by: str
    slow: float
    fast: float

    @property
    def speedup(self) -> float:
        return self.slow / self.fast

    @property
    def error(self) -> float:
        return self.speedup / self.case.speedup - 1


def predict(case: Case) -> list[Predicted]:
    """Predict from data sheets, and from the published parts of a synchronous step, if any."""
    work, seed = case.workload(), 0
    slow, fast = case.hardware(case.scored[0]), case.hardware(case.scored[1])
    a = simulate(case.slow, slow, work.stream(seed))
    b = simulate(case.fast, fast, work.stream(seed))
    found = [Predicted(case, "data sheets", a.seconds, b.seconds)]
    if case.parts:
        sampling = simulate(case.slow, replace(slow, update=0, train=0, fixed=0, weights=0), work.stream(seed)).seconds
        factor = case.parts["sampling"] / sampling
        own = {k: getattr(slow, k) * factor for k in ("step", "row", "cached", "read")}
        tokens = case.groups * case.n * work.tokens
        reduce = slow.learn(0, case.devices)
        train = max(0.0, case.parts["learning"] - reduce) * case.devices / tokens
        share = PASSES / (PASSES + 2) if case.scored == (True, False) else 1.0
        slow = replace(slow, **own, train=train, fixed=case.parts["besides"])
        fast = replace(slow, train=train * share)
        a = simulate(case.slow, slow, work.stream(seed))
        b = simulate(case.fast, fast, work.stream(seed))
        found.append(Predicted(case, "published parts", a.seconds, b.seconds))
    return found


QWEN_1B = Model(1.54e9, 1.54e9, 28 * 2 * 2 * 128 * 2)
QWEN_7B = Model(7.6e9, 7.6e9, 28 * 2 * 4 * 128 * 2)
QWEN_30B = Model(30.5e9, 3.3e9, 48 * 2 * 4 * 128 * 2)

AREAL = (
    "arXiv 2505.24298 and AReaL's blog v0.2 and v0.3: GPUs, hours of 1,000 steps, 512 prompts of 16, 27K tokens, "
    "4 minibatches"
)
AREAL_ASSUMED = (
    "mean of 9,000 tokens (published: less than 5 % are cut), prompts of 200, staleness 4, 3 of 4 devices sample"
)
VERL = (
    "verl docs, advance/fully_async: 512 prompts of 16, 28K tokens, minibatches of 32, 4 portions, staleness 0.5, "
    "parts of a step"
)
VERL_ASSUMED = "mean of 1,500 tokens, prompts of 200, replicas of one device"
NEMO = (
    "NeMo-RL v0.6 performance summary and its recipe: 64 prompts of 32, 4,096 tokens, mean 3,203, TP 2, 16 + 16 GPUs, "
    "1 step off, weights in flight"
)


def _areal(name: str, model: Model, devices: int, hours: tuple[float, float]) -> Case:
    fast = Setting("partial", devices * 3 // 4, devices // 4, groups=512, staleness=4, steps=STEPS + 5)
    return Case(name, AREAL, H100, model, devices, 1, 512, 16, 200, 9_000, 27_648, 4, fast, hours[0] / hours[1],
                (hours[0] * 3.6, hours[1] * 3.6), assumed=AREAL_ASSUMED)  # fmt: skip


def _verl(devices: int, slow: float, fast: float, sampling: float, scoring: float, learning: float) -> Case:
    half = devices // 2
    setting = Setting("partial", half, half, groups=512, staleness=0.5, stream=4, steps=STEPS + 2)
    parts = {"sampling": sampling, "learning": scoring + learning, "besides": slow - sampling - scoring - learning}
    name = f"verl, Qwen2.5-Math-7B, {half} + {half} H20"
    return Case(name, VERL, H20, QWEN_7B, devices, 1, 512, 16, 200, 1_500, 28_672, 16, setting,
                slow / fast, (slow, fast), (True, False), VERL_ASSUMED, parts)  # fmt: skip


_LARGE = _verl(128, 356.30, 150.63, 177.85, 53.92, 113.81)
_STREAM = Setting("sync", 64, 64, apart=True, groups=512, stream=4, steps=4)

CASES: tuple[Case, ...] = (
    _areal("AReaL, R1-Distill-Qwen-1.5B, 128 H800", QWEN_1B, 128, (41.0, 14.8)),
    _areal("AReaL, R1-Distill-Qwen-7B, 192 H800", QWEN_7B, 192, (57.7, 25.4)),
    _verl(32, 790.10, 294.77, 357.41, 107.71, 313.81),
    _verl(64, 365.28, 189.26, 150.72, 70.26, 133.41),
    _LARGE,
    replace(_LARGE, name="the same, streaming alone", fast=_STREAM, speedup=356.30 / 231.34, seconds=(356.30, 231.34)),
    Case("NeMo-RL, Qwen3-30B-A3B, 16 + 16 H100", NEMO, H100, QWEN_30B, 32, 2, 64, 32, 200, 3_003, 3_896, 4,
         Setting("partial", 16, 16, groups=64, staleness=1, steps=STEPS + 2), 1414 / 1102, (192.0, 152.0),
         assumed="prompts of 200 tokens, forwards for log-probabilities in both"),
)  # fmt: skip
"""The published cases. Seconds of AReaL are from hours of 1,000 steps, those of verl are the means on its page."""

MESSAGE = 0.85e-3 / 2  # seconds: a call of a Ray actor and its reply took 0.85 ms on two cores
PACKED = 45e-9  # seconds to store a byte of a group, on one core
STORED = 5.4  # bytes of a token of a stored answer


def scaled(sizes: Sequence[int], kept: float = 1.0) -> list[Scale]:
    """Scale the second case, R1-Distill-Qwen-7B on H800 at staleness 4, to more devices with as many groups each,
    driven by one process of this library. `kept`: the share of answers that it stores."""
    case = CASES[1]
    hardware, work = case.hardware(True), case.workload()
    hardware = replace(hardware, fixed=0.0, driver=MESSAGE, store=PACKED, kept=kept * STORED * work.tokens)
    return scale(sizes, replace(case.fast, steps=STEPS), hardware, work, split=0.75, base=case.devices)
