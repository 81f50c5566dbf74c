"""Between ports nothing is looked for: what a component may lack has one accessor, and nobody asks for its class."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import pytest

import shuhari
from shuhari import ports
from shuhari.kernel.abilities import MUSTS, OPTIONAL, ability, explain_misfit, find_missing
from shuhari.ports import is_text, is_vector

ROOT = Path(shuhari.__file__).parent

FOREIGN = {  # file -> what it may look for, of objects of other libraries or whatever a user hands over; whose it is
    "api.py": ("spaces", "spaces of Gymnasium"),
    "bounds.py": ("_is_protocol shape", "annotations, and numbers of numpy and torch"),
    "buffers/recording.py": ("spaces", "spaces of Gymnasium"),
    "buffers/recordings.py": ("is_bounded", "spaces of Gymnasium"),
    "claims/sources.py": ("__dict__", "classes"),
    "cli/__init__.py": ("ctx", "errors of click"),
    "cli/dry.py": ("__dataclass_fields__", "values of settings"),
    "cli/training.py": ("SIGHUP", "signals that a system has"),
    "loop/sessions.py": ("__name__", "functions of users"),
    "loop/study.py": ("item", "numbers of numpy and torch"),
    "models/spaces.py": ("start", "spaces of Gymnasium"),
    "models/text/classifier.py": ("chat_template max_position_embeddings", "tokenizers and models of transformers"),
    "models/text/layouts.py": (
        "attn attn_logit_softcapping base_layer bias crossattention final_logit_softcapping get_delta_weight k_norm "
        "logit_scale logits_scaling num_key_value_heads q_norm sliding_window variance_epsilon",
        "modules of transformers and peft",
    ),
    "models/text/pretrained.py": ("eos_token_id", "modules of transformers"),
    "models/text/tokenizers.py": ("backend_tokenizer chat_template", "tokenizers of transformers"),
    "models/text/trunk.py": ("bias max_position_embeddings suppress_tokens", "modules of transformers"),
    "needs.py": ("__name__", "functions"),
    "registry.py": ("__file__", "modules of users"),
    "models/text/chat_child.py": ("setitimer", "limits that a system has"),
    "models/text/folder.py": ("num_hidden_layers", "configurations of transformers"),
    "rewards/function.py": ("__qualname__ tolist", "functions of users, and numbers of numpy and torch"),
    "rewards/maths_child.py": ("fork setitimer", "limits that a system has"),
    "rollouts/function_tool.py": ("__name__", "functions of users"),
    "rollouts/vector/workers.py": ("__file__ memfd_create", "files of modules, and what a system has"),
    "store/files.py": ("O_NOFOLLOW O_NONBLOCK register_at_fork sched_getaffinity", "what a system has"),
    "store/schema.py": ("tolist", "numbers of numpy and torch"),
    "tasks/snapshots.py": ("numpy start", "environments and spaces of Gymnasium"),
    "tools/episodes.py": ("tolist", "numbers of numpy and torch"),
    "tools/plain.py": ("tolist", "numbers of numpy and torch"),
    "tools/profile_report.py": ("base config dtype head_dim", "modules of transformers"),
}


Nodes = list[ast.Call | ast.ClassDef | ast.ImportFrom]


def read(text: str) -> Nodes:
    """All that the tests look at."""
    return [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call | ast.ClassDef | ast.ImportFrom)]


@pytest.fixture(scope="module")
def sources() -> dict[str, Nodes]:
    """File -> what it has."""
    return {path.relative_to(ROOT).as_posix(): read(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def looked_for(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """(line, name) of every attribute that is asked for by a name in quotes, and may be missing."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if named and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)):
                yield node.lineno, str(node.args[1].value)  # type: ignore[attr-defined]


def components(sources: dict[str, Nodes]) -> dict[str, str]:
    """Class -> file, of all that is registered."""
    found = {}
    for file, nodes in sources.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                calls = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
                if any(getattr(call, "id", "") == "register" for call in calls):
                    found[node.name] = file
    return found


def module_of(file: str) -> str:
    return f"shuhari.{file.removesuffix('.py').replace('/', '.')}"


def test_the_searches_find() -> None:
    assert list(looked_for(read('getattr(x, "encode", None)\nhasattr(x, "a")\ngetattr(x, name, 0)'))) == [
        (1, "encode"), (2, "a")
    ]  # fmt: skip
    own = read("@register('reward', 'mine')\nclass Mine: ...\nclass Other: ...")
    assert components({"a.py": own}) == {"Mine": "a.py"}


def test_nothing_is_looked_for_but_by_its_accessor(sources: dict[str, Nodes]) -> None:
    """Of components, whether it is a must of their port or may be missing; what is excused is there."""
    excused = {(file, name) for file, (names, _) in FOREIGN.items() for name in names.split()}
    found = {(file, name): line for file, nodes in sources.items() for line, name in looked_for(nodes)}
    assert found.keys() - excused == set(), "ask shuhari.kernel.abilities.ability instead"
    assert excused - found.keys() == set()
    musts = {name for of_kind in MUSTS.values() for name in of_kind}
    assert {name for _, name in excused} & (musts | OPTIONAL.keys()) <= {"spaces"}  # those of Gymnasium


def test_nobody_asks_for_the_class_of_a_component(sources: dict[str, Nodes]) -> None:
    known, found = components(sources), []
    for file, nodes in sources.items():
        if file.startswith("claims/"):
            continue  # quantities are parts of one reader, and no port
        others = {a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names
                  if n.module != module_of(known.get(a.name, ""))}  # of another module, or by another name
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = [n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)]
                found += [f"{file}:{node.lineno} {n}" for n in names if n in known.keys() - others and known[n] != file]
    assert not found


def test_every_port_is_named_in_one_place() -> None:
    modules = [import_module(f"shuhari.ports.{m.name}") for m in iter_modules(ports.__path__)]
    inner = {n for m in modules for n, x in vars(m).items()
             if inspect.isclass(x) and x.__module__ == m.__name__ and not n.startswith("_")}  # fmt: skip
    assert inner <= set(ports.__all__)


# ---------------------------------------------------------------- what stands for what is missing


def test_a_component_that_has_nothing_stands_for_all_that_is_asked() -> None:
    bare = object()
    assert ability(bare, "report")() == {} and ability(bare, "close")() is None
    assert ability(bare, "open")(object(), 1) is None
    assert ability(bare, "renamed")({"w": 1}) == {"w": 1}
    assert not ability(bare, "staleness") and ability(bare, "observe") is None
    assert not is_vector(bare) and not is_text(bare)


def test_what_a_component_has_is_what_is_given() -> None:
    own: Any = SimpleNamespace(report=lambda: {"x": 1.0}, unit="decision", encode=str)
    assert ability(own, "report")() == {"x": 1.0}
    assert is_vector(own) and is_text(own)
    assert find_missing(own, "report", "group") == ["group"]


def test_a_rollout_is_of_groups_or_of_decisions_and_says_which() -> None:
    group, collect = (lambda request, ctx: []), (lambda n, ctx: None)
    assert explain_misfit("rollout", SimpleNamespace(group=group)) == ""
    assert explain_misfit("rollout", SimpleNamespace(collect=collect, unit="decision")) == ""
    assert "unit = 'decision'" in explain_misfit("rollout", SimpleNamespace(collect=collect))
    assert "no collect(n, ctx)" in explain_misfit("rollout", SimpleNamespace(group=group, unit="decision"))


def test_an_ability_as_it_was_called_before_is_refused_with_its_name_of_now() -> None:
    assert explain_misfit("task", SimpleNamespace(told={"cost": 0.0})) == "has 'told': it is called 'extras' now"
    assert "told" not in explain_misfit("task", SimpleNamespace(extras={"cost": 0.0}))
    assert explain_misfit("reward", SimpleNamespace(told=1, grade=lambda group, ctx: [])) == ""


def test_a_name_that_is_not_optional_is_told_with_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"'reprt' is not among the optional abilities.*'report'"):
        ability(object(), "reprt")
