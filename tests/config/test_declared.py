"""What components state of themselves is read from their source, and nothing outside them knows them by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shuhari
from shuhari.config.methods import is_sampling
from shuhari.config.overlay import USE
from shuhari.config.recipe import load, spreads
from shuhari.kernel import registry
from shuhari.loop.checks import make_stages
from shuhari.ports.declares import is_among

ROOT = Path(shuhari.__file__).parent
KINDS = ("buffer", "rollout", "engine", "curriculum", "objective", "transform", "optimiser", "learner", "follow",
         "model")  # fmt: skip
NAMES = {name for kind in KINDS for name in registry.names(kind)}
EVERYDAY = {  # (file, word): a component is called so too, and something else is meant
    ("config/words.py", "scale_rewards"),  # a setting of TRL
    ("config/words.py", "temperature"), ("config/settings.py", "temperature"),  # a setting of [rollout.sampling]
    ("config/files.py", "copy"), ("loop/outside.py", "copy"),  # a key of a run's list of files
    ("config/overlay.py", "value"), ("lab/claims/curve.py", "value"),  # a key of a table
    ("loop/roles.py", "value"),  # a layer
    ("config/named.py", "kto"), ("config/named.py", "decision_transformer"),  # names that people type
    ("config/named.py", "causal"),  # a model that writes text from scratch
    ("config/overlay.py", "groups"), ("loop/suits.py", "groups"), ("config/methods.py", "groups"),  # a need
    ("loop/kept.py", "advantage"),  # a column
    ("loop/outcomes.py", "episode"),  # a column
    ("lab/claims/making.py", "entropy"),  # a metric
    ("lab/claims/quantities.py", "linear"),  # the form of a fit
    ("config/words.py", "expectile"),  # a setting of d3rlpy
    ("loop/hiring.py", "tree"),  # a key of a message
}
DEFAULTS = {  # (file, name): what stands where a recipe, or a caller, names nothing
    *(("config/overlay.py", name) for name in USE.values()),
    ("config/build.py", "ema"), ("config/methods.py", "ema"), ("config/build.py", "gradient"),
    ("config/build.py", "episode"), ("loop/sessions.py", "adamw"), ("loop/sessions.py", "local"),
    ("config/precision.py", "clip"),  # whose ratio 16 bits correct
    ("loop/sessions.py", "causal"), ("loop/sessions.py", "single"), ("loop/sessions.py", "episode"),
}  # fmt: skip


def list_texts(file: Path) -> set[str]:
    """The texts of a module's code, without docstrings and parts of messages."""
    return {n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant) and
            isinstance(n.value, str)}  # fmt: skip


def test_what_is_read_is_what_is_registered() -> None:
    for kind in registry.KINDS:
        registry._load(kind)
        ours = {name for (of, name), cls in registry.entries().items() if of == kind and
                cls.__module__.startswith("shuhari.") and ".testing." not in cls.__module__}  # fmt: skip
        assert set(registry._read_classes(kind)) == ours
    registered = registry.entries()
    for (kind, name), cls in registered.items():
        for key in ("samples", "asks", "bootstraps", "spreads"):
            if kind in ("buffer", "engine", "rollout", "curriculum") and name in registry._read_classes(kind):
                assert registry.declared(kind, name, key) == getattr(cls, key, None)


def test_a_recipe_of_text_is_resolved_without_any_component() -> None:
    code = "import sys; from shuhari.config.recipe import load; load('rlvr/oreal'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "shuhari.kernel.registry" in done.stdout.split()
    heavy = ("torch", "shuhari.objectives", "shuhari.buffers", "shuhari.transforms")
    assert not [m for m in done.stdout.split() if m.startswith(heavy)]


@pytest.mark.parametrize("package", ["config", "loop", "claims"])
def test_no_component_is_known_by_name(package: str) -> None:
    found = {(str(file.relative_to(ROOT)), text) for file in (ROOT / package).rglob("*.py") for text in list_texts(file)
             if text in NAMES}  # fmt: skip
    assert found - EVERYDAY - DEFAULTS == set()


@pytest.mark.parametrize("use", ["chosen_solutions", "kept_answers", "hard_problems"])
def test_a_warm_up_by_any_buffer_of_the_library_stays_as_it_is(use: str) -> None:
    own = {"stage.warm-up.buffer": {"use": use, "stream": "ce"}}
    base = load("baselines/grpo_chain", settings=own)
    laid = load("baselines/grpo_chain", settings=own | {"part.policy.minibatches": 2}, methods=["rlvr/kl_cov"])
    assert [is_sampling(s) for s in base.stages] == [False, True]
    warm = [{k: v for k, v in r.stages[0]["part"]["policy"]["terms"].items()} for r in (base, laid)]
    assert warm[0] == warm[1] == {"nll": {"stream": "ce"}}
    assert laid.stages[1]["part"]["policy"]["terms"]["loss"]["use"] == "kl_cov"
    make_stages(laid)


def test_what_spreads_the_work_is_told_by_who_spreads_it() -> None:
    for key in ("engine.slots", "stage.rl.engine.slots", "rollout.workers", "curriculum.folder", "threads",
                "engine.patience", "distributed.workers", "stage.rl.micro_batch"):  # fmt: skip
        assert spreads(key)
    for key in ("engine.staleness", "rollout.n", "buffer.size", "engine.use", "part.policy.minibatches", "steps"):
        assert not spreads(key)


def test_a_star_stands_for_a_space_or_for_what_is_in_none_of_the_librarys() -> None:
    assert is_among("info/level", ("info/*",)) and is_among("info/level", ("*",)) and is_among("level", ("*",))
    assert not is_among("info/level", ("level", "weight/*")) and not is_among("weight/rl", ("*",))
    assert is_among("weight/rl", ("weight/*",)) and not is_among("level", ("info/*",))
