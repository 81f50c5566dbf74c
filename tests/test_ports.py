"""Between ports nothing is looked for: what a component may lack has one accessor, and nobody asks for its class."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, Union, get_args, get_origin, get_overloads, get_type_hints

import pytest
from gymnasium import Env

import shuhari
from shuhari import batch, data, events, ports
from shuhari.kernel.abilities import MUSTS, OPTIONAL, explain_misfit, find_missing, give_none
from shuhari.ports import ability, is_text, is_vector

ROOT = Path(shuhari.__file__).parent

FOREIGN = {  # file -> what it may look for, of objects of other libraries or whatever a user hands over; whose it is
    "desk/observations.py": ("spaces", "spaces of Gymnasium"),
    "desk/evaluating.py": ("__name__", "functions of users"),
    "config/named.py": ("shape", "spaces of Gymnasium"),
    "bounds.py": ("_is_protocol shape", "annotations, and numbers of numpy and torch"),
    "buffers/recording.py": ("spaces", "spaces of Gymnasium"),
    "buffers/recordings.py": ("is_bounded", "spaces of Gymnasium"),
    "lab/claims/sources.py": ("__dict__", "classes"),
    "desk/cli/__init__.py": ("ctx", "errors of click"),
    "desk/cli/training.py": ("SIGHUP", "signals that a system has"),
    "loop/sessions.py": ("__name__", "functions of users"),
    "methods/analysis/backtrack_or_not/equal_compute.py": (
        "config hidden_size num_hidden_layers", "configurations of transformers"),
    "methods/preference/cpl/soft_advantages.py": ("P R", "tables of an environment"),
    "methods/theory/sequoia/joint_q.py": ("coupling", "tables of an environment"),
    "loop/study.py": ("item", "numbers of numpy and torch"),
    "tasks/atari.py": ("_frameskip get_action_meanings", "environments of ale-py"),
    "models/spaces.py": ("start", "spaces of Gymnasium"),
    "models/text/clean.py": (
        "attribute_map config init_kwargs sub_configs", "configurations and tokenizers of transformers",
    ),
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
    "kernel/registry.py": ("__file__", "modules of users"),
    "models/text/chat_child.py": ("setitimer", "limits that a system has"),
    "models/text/folder.py": ("num_hidden_layers", "configurations of transformers"),
    "rewards/function.py": ("__qualname__ tolist", "functions of users, and numbers of numpy and torch"),
    "rewards/maths_child.py": ("fork setitimer", "limits that a system has"),
    "rollouts/function_tool.py": ("__name__", "functions of users"),
    "rollouts/vector/workers.py": ("__file__ memfd_create", "files of modules, and what a system has"),
    "store/files.py": ("O_NOFOLLOW O_NONBLOCK register_at_fork sched_getaffinity", "what a system has"),
    "store/schema.py": ("tolist", "numbers of numpy and torch"),
    "tasks/snapshots.py": ("numpy start", "environments and spaces of Gymnasium"),
    "desk/episodes.py": ("tolist", "numbers of numpy and torch"),
    "desk/plain.py": ("__dataclass_fields__ tolist", "values of settings, and numbers of numpy and torch"),
    "desk/profile_report.py": ("base config dtype head_dim", "modules of transformers"),
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
    assert found.keys() - excused == set(), "ask shuhari.ports.ability instead"
    assert excused - found.keys() == set()
    musts = {name for of_kind in MUSTS.values() for name in of_kind}
    assert {name for _, name in excused} & (musts | OPTIONAL.keys()) <= {"spaces"}  # those of Gymnasium


def test_nobody_asks_for_the_class_of_a_component(sources: dict[str, Nodes]) -> None:
    known, found = components(sources), []
    for file, nodes in sources.items():
        if file.startswith(("lab/claims/", "methods/theory/sequoia/", "methods/theory/stock/")):
            continue  # quantities are parts of one reader, and no port; metrics of one model alone
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


# ---------------------------------------------------------------- the types of what may be missing

COMPANIONS = {"restore", "outline"}  # what comes with `snapshot` and `export`: those who ask for these have them
TWICE = {"open", "held_out", "unit"}  # what components of two ports have, of a form of their own
UNTYPED = {  # files that ask without types, why
    "needs.py": "below the ports", "ports/models.py": "what the types are made of",
    "ports/collecting.py": "what the types are made of", "ports/hooks.py": "gives them types",
    "desk/cli/catalogue.py": "loads no torch", "desk/cli/dry.py": "loads no torch",
}  # fmt: skip
NAMES = {**vars(data), **vars(batch), **vars(events), **vars(ports.models), **vars(ports), "Env": Env}


def protocols() -> Iterator[type]:
    """Those of what a component may have: all that they have is optional, and no must of a port of that name."""
    for module in (import_module(f"shuhari.ports.{m.name}") for m in iter_modules(ports.__path__)):
        for port in vars(module).values():
            if inspect.isclass(port) and port.__module__ == module.__name__ and issubclass(port, typing.Generic):
                own, musts = set(members(port)), MUSTS.get(port.__name__.lower(), {})
                if own and own <= OPTIONAL.keys() | COMPANIONS and not own & musts.keys():
                    yield port


def members(port: type) -> list[str]:
    return [n for n in {**vars(port).get("__annotations__", {}), **vars(port)} if not n.startswith("_")]


def written(port: type, name: str) -> str:
    """The type of a member as its protocol has it, as one that asks for it reads it."""
    member: Any = vars(port).get(name)
    if member is None:
        return str(vars(port)["__annotations__"][name])
    *given, answer = (member.fget if isinstance(member, property) else member).__annotations__.values()
    if isinstance(member, property):
        return str(answer)
    answer = f"Coroutine[Any, Any, {answer}]" if inspect.iscoroutinefunction(member) else answer
    answer += " | tuple[()]" if OPTIONAL[name] is give_none else ""
    return f"Callable[[{', '.join(given)}], {answer}]"


def overloads() -> dict[str, list[Callable[..., Any]]]:
    """Name -> the forms in which `ability` gives it."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for one in get_overloads(ability):
        for name in get_args(get_type_hints(one, localns=NAMES)["name"]):
            found.setdefault(name, []).append(one)
    return found


def fits(value: Any, hint: Any) -> bool:
    """Whether a default is of a type; of a function what it gives for what it is to be called with."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, None, types.NoneType):
        return hint is Any or value is None
    if origin in (Union, types.UnionType):
        return types.NoneType in args if value is None else any(fits(value, a) for a in args)
    if origin is get_origin(Callable[[], int]):
        return callable(value) and fits(value(*[{}] * (len(hint.__args__) - 1)), hint.__args__[-1])
    if origin is tuple:
        return isinstance(value, tuple) and (args[1:] == (...,) or len(value) == len(args))
    return isinstance(value, origin or hint) and isinstance(value, bool) <= (hint is bool)


def test_the_table_the_protocols_and_the_overloads_name_the_same() -> None:
    of = [n for port in protocols() for n in members(port) if n not in COMPANIONS]
    assert OPTIONAL.keys() == set(of)
    assert OPTIONAL.keys() == overloads().keys()
    assert {n for n in of if of.count(n) > 1} == TWICE


def test_what_is_given_is_what_the_protocol_says_or_what_stands_for_it() -> None:
    given = {name: [one.__annotations__["return"] for one in forms] for name, forms in overloads().items()}
    for port, name in ((p, n) for p in protocols() for n in members(p) if n not in COMPANIONS):
        said = written(port, name)
        assert said in given[name] or (OPTIONAL[name] is None and f"{said} | None" in given[name]), (port, name)
    assert {name for name, forms in given.items() if len(forms) > 1} <= TWICE


def test_what_stands_for_a_missing_one_has_the_type_that_is_given() -> None:
    for name, forms in overloads().items():
        for hint in (get_type_hints(one, localns=NAMES)["return"] for one in forms):
            assert fits(OPTIONAL[name], hint), (name, OPTIONAL[name], hint)


def test_a_default_of_another_type_is_found() -> None:
    assert fits("", str) and not fits(None, str) and fits(None, str | None) and not fits(0, bool)
    assert fits(lambda x: "", Callable[[int], str]) and not fits(lambda x: None, Callable[[int], str])
    assert not fits("", Callable[[int], str] | None)
    assert fits((), tuple[str, ...]) and not fits([], tuple[str, ...])


def test_all_above_the_ports_ask_with_types(sources: dict[str, Nodes]) -> None:
    found = {file for file, nodes in sources.items() for n in nodes if isinstance(n, ast.ImportFrom)
             if (n.module == "shuhari.kernel.abilities" and any(a.name == "ability" for a in n.names))
             or (n.module == "shuhari.kernel" and any(a.name == "abilities" for a in n.names))}  # fmt: skip
    assert found <= UNTYPED.keys()
