"""A checkpoint holds what changed: the oracle is the same run whose checkpoints have every weight by value."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from chat_models import save_chat
from shuhari.config.recipe import Recipe, load
from shuhari.desk.api import load as load_policy
from shuhari.loop import outside, roles
from shuhari.loop.based import FEW, Start, find_same
from shuhari.loop.roles import load_initial
from shuhari.loop.run import train
from shuhari.models.text.pretrained import load as load_model
from shuhari.store import Run, StoreError
from shuhari.store.damage import inspect_run
from shuhari.store.names import BASED
from shuhari.store.tensors import find_digest
from shuhari.testing.compare import contents, differences

pytest.importorskip("peft")
ADAPTERS = {"models.policy.lora": {"rank": 2, "alpha": 4, "targets": ["q_proj"]}}


def recipe(home: Path, name: str, base: str = "base", **more: Any) -> Recipe:
    few = {"steps": 3, "buffer.size": 2, "evaluate.n": 0, "threads": 1, "part.policy.optimiser.lr": 0.01}
    own = {"models.policy.path": str(home / base), "task.name": f"file/{home}/rows.jsonl", "store.every": 1}
    return load(name, settings={**few, **own, **more})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, rows, and runs of it: `adapted`, `whole` (every weight is trained), `pairs` (with a reference)."""
    at = tmp_path_factory.mktemp("based")
    rows = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(8)]
    pairs = [{"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": "no"} for i in range(8)]
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (at / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    save_chat(at / "base")
    torch.set_num_threads(1)
    list(train(recipe(at, "pretrained/sft", **ADAPTERS), at / "adapted"))
    list(train(recipe(at, "baselines/sft_arithmetic"), at / "whole"))
    whole = {"remove": ["models.policy.lora"], "task.name": f"file/{at}/pairs.jsonl"}
    list(train(recipe(at, "pretrained/dpo", **whole), at / "pairs"))
    return at


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def by_value(home: Path) -> Path:
    """The run `adapted` as earlier versions stored it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles, "find_start", lambda model: None)
        list(train(recipe(home, "pretrained/sft", **ADAPTERS), home / "by-value"))
    assert BASED not in Run(home / "by-value").load()
    return home / "by-value"


def test_of_adapters_the_base_is_not_stored_and_comes_back_bit_for_bit(home: Path, by_value: Path) -> None:
    tree, whole = Run(home / "adapted").load(), Run(by_value).load()["models"]["policy"]
    mine = tree["models"]["policy"]
    assert mine and all(".lora_" in name for name in mine)
    assert {*mine} | {*tree[BASED]["policy"]["digests"]} == {*whole} and tree[BASED]["policy"]["path"].endswith("base")
    back = load_initial(str(home / "adapted"))["policy"]
    assert back.keys() == whole.keys() and all(torch.equal(back[n], whole[n]) for n in whole)


def test_what_is_trained_is_stored_and_a_reference_that_nobody_trains_is_not(home: Path) -> None:
    tree = Run(home / "pairs").load()
    assert not tree["models"]["reference"] and not differences(
        {n: find_digest(x) for n, x in load_initial("pairs")["reference"].items()},
        dict(tree[BASED]["reference"]["digests"]),
    )
    assert len(tree["models"]["policy"]) > len(tree[BASED].get("policy", {}).get("digests", ()))
    assert BASED not in Run("whole").load()


def test_what_is_no_longer_what_was_loaded_is_stored() -> None:
    """Such as a reference that came to life behind a stage that trained."""
    start = Start("base", {"a": find_digest(torch.arange(99))}, {"a": find_digest(torch.arange(FEW))})
    assert find_same({"a": torch.arange(99)}, start) and not find_same({"a": torch.arange(99).flip(0)}, start)
    late = torch.arange(99)
    late[-1] = 0  # the first few numbers are those of the start
    assert not find_same({"a": late}, start) and not find_same({"b": torch.arange(99)}, start)


@pytest.mark.parametrize(("name", "more"), [("pretrained/sft", ADAPTERS), ("pretrained/dpo", {})])
def test_it_goes_on_with_the_same_bits(name: str, more: dict[str, Any], home: Path, tmp_path: Path) -> None:
    made = recipe(home, name, **more)
    if "dpo" in name:
        made = recipe(home, name, **{"task.name": f"file/{home}/pairs.jsonl"})
    for stop in (1, 2, None):
        for report in (reports := train(made, tmp_path / "parts")):
            if report["step"] == stop:
                reports.close()
    list(train(made, tmp_path / "at-once"))
    assert not differences(contents(tmp_path / "at-once"), contents(tmp_path / "parts"))


def test_a_run_that_was_stored_by_value_goes_on(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(home, "pretrained/sft", **ADAPTERS)
    with monkeypatch.context() as patch:
        patch.setattr(roles, "find_start", lambda model: None)
        reports = train(made, tmp_path / "old")
        next(reports)
        reports.close()
    list(train(made, tmp_path / "old"))
    old, new = (load_initial(str(p))["policy"] for p in (tmp_path / "old", home / "adapted"))
    assert BASED in Run(tmp_path / "old").load() and all(torch.equal(old[n], new[n]) for n in new)


def test_load_gives_what_it_gave(home: Path, by_value: Path) -> None:
    """And `export`, which `test_stored.py` holds to the run's own weights."""
    a, b = (load_policy(str(run)).model.module.state_dict() for run in (home / "adapted", by_value))
    assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in b)


def test_a_copy_of_a_run_finds_the_base_and_the_copy_that_it_keeps(home: Path, tmp_path: Path) -> None:
    """A small base lies in `needs/` of the run, also where the one at the path is gone."""
    save_chat(tmp_path / "own")
    list(train(recipe(tmp_path, "pretrained/sft", "own", **ADAPTERS, **{"task.name": f"file/{home}/rows.jsonl"}),
               tmp_path / "first"))  # fmt: skip
    before = load_initial(str(tmp_path / "first"))["policy"]
    shutil.copytree(tmp_path / "first", tmp_path / "elsewhere" / "copied")
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "own")
    copied = tmp_path / "elsewhere" / "copied"
    after = load_initial(str(copied))["policy"]
    assert all(torch.equal(before[n], after[n]) for n in before)
    loaded = load_policy(str(copied)).model.module.state_dict()
    assert all(torch.equal(before[n], loaded[n]) for n in before) and not inspect_run(copied).faults


def test_a_base_that_has_changed_or_is_gone_is_told_by_name(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too large for the run to keep a copy of it."""
    monkeypatch.setattr(outside, "COPY", 0)
    more = {**ADAPTERS, "task.name": f"file/{home}/rows.jsonl", "steps": 1}
    save_chat(tmp_path / "big")
    made = recipe(tmp_path, "pretrained/sft", "big", **more)
    list(train(made, tmp_path / "run"))
    name = "base.layers.0.self_attn.q_proj.base_layer.weight"
    expected = Run(tmp_path / "run").load()[BASED]["policy"]["digests"][name]
    kept = dict(load_initial(str(tmp_path / "run"))["policy"])
    lm, _ = load_model(str(tmp_path / "big"))
    with torch.no_grad():
        lm.model.layers[0].self_attn.q_proj.weight[0, 0] += 1
    shutil.move(tmp_path / "big" / "model.safetensors", tmp_path / "kept")
    lm.save_pretrained(tmp_path / "big")
    found = find_digest(lm.model.layers[0].self_attn.q_proj.weight)
    told = f"model.safetensors has changed since: 1 differ, such as {name}: digest {expected} expected, {found} found"
    for use in (load_initial, load_policy):
        with pytest.raises(StoreError) as error:
            use(str(tmp_path / "run"))
        assert told in str(error.value) and "put back the model that it was" in str(error.value)
    assert not inspect_run(tmp_path / "run").notes
    shutil.rmtree(tmp_path / "big")
    with pytest.raises(StoreError, match=r"by reference to .*big, which is not there: put back") as error:
        load_initial(str(tmp_path / "run"))
    assert expected in str(error.value) or "digest of" in str(error.value)
    report = inspect_run(tmp_path / "run")
    assert not report.faults and any("big, which is not there" in note for note in report.notes)
    save_chat(tmp_path / "big")
    again = load_initial(str(tmp_path / "run"))["policy"]
    assert all(torch.equal(kept[n], again[n]) for n in kept)
