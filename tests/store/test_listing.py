"""Lists of runs: what each is and how it stands; chosen by words; removed without what is not the library's."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from shuhari.store import (
    LockedError,
    NoRunError,
    Run,
    Store,
    StoreError,
    list_runs,
    remove_run,
    rename_run,
    resolve,
    tag_run,
)
from shuhari.store.layout import MADE
from shuhari.store.listing import MOST, name_task, name_tasks, read_made, read_tags


def make(path: Path, task: str, **facts: object) -> Path:
    with Store.open(path) as store:
        store.write_text("recipe.toml", f'name = "baselines/{path.name}"\nsteps = 3\n[task]\nname = "{task}"\n')
        store.commit(1, metrics={"reward": 0.5}, tree={"n": 1})
        store.set(**facts)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path / "grpo", "arithmetic", complete=True)
    make(tmp_path / "dqn", "gym/CartPole-v1")
    make(tmp_path / "grpo_long", "countdown")
    return tmp_path


def test_a_list_says_what_a_run_is(root: Path) -> None:
    found = list_runs(root)
    assert [(r.name, r.recipe, r.task, r.status, r.total) for r in found] == [
        ("dqn", "baselines/dqn", "gym/CartPole-v1", "stopped", 3),
        ("grpo", "baselines/grpo", "arithmetic", "complete", 3),
        ("grpo_long", "baselines/grpo_long", "countdown", "stopped", 3),
    ]
    assert all(len(r.date) == len("2026-01-31 12:00") for r in found)


@pytest.mark.parametrize(("table", "shown"), [
    ({"name": "gym", "path": "world/given/Maze-ab12cd"}, "gym/Maze (env=)"),
    ({"name": "gym", "path": "world/envs.py:Maze"}, "gym/world/envs.py:Maze"),
    ({"name": "file/a.jsonl"}, "file/a.jsonl"),
])  # fmt: skip
def test_an_environment_is_named(table: dict[str, str], shown: str) -> None:
    assert name_task(table) == shown == name_tasks({"task": table, "stage": [{"name": "a", "task": table}]})


def test_words_and_status_choose(root: Path) -> None:
    def names(*words: str, status: str = "") -> list[str]:
        return [r.name for r in list_runs(root, words, status)]

    assert names("GRPO") == ["grpo", "grpo_long"] and names("grpo", "count") == ["grpo_long"]
    assert names("cartpole") == ["dqn"] and names(status="complete") == ["grpo"] and names("dqn", status="failed") == []


def test_a_run_that_ended_in_an_error_has_failed_until_it_goes_on(root: Path) -> None:
    path = root / "dqn"

    def end(step: int | None, error: BaseException) -> None:
        with suppress(type(error)), Store.open(path) as store:
            if step is not None:
                store.commit(step, metrics={}, tree={"n": step})
            raise error

    end(2, KeyError("power"))
    (run,) = list_runs(root, ["dqn"])
    assert (run.status, run.note) == ("failed", "KeyError: 'power'") and Run(path).status == "failed"
    end(3, KeyboardInterrupt("power"))  # an interruption is none
    assert Run(path).status == "stopped"
    end(None, ValueError("power"))  # nor is an error before anything was written
    assert Run(path).status == "stopped"


def test_a_run_is_removed_with_all_that_is_its_own(root: Path) -> None:
    path = root / "grpo"
    (path / "damaged-1").mkdir()
    (path / "children" / "a").mkdir(parents=True)
    assert remove_run(path) == [] and not path.exists() and len(list_runs(root)) == 2
    (root / "dqn" / "notes.txt").write_text("mine")
    assert remove_run(root / "dqn") == ["notes.txt"] and (root / "dqn" / "notes.txt").read_text() == "mine"
    with pytest.raises(StoreError, match="is not a run"):
        remove_run(root / "dqn")
    with pytest.raises(StoreError, match="is not a run"):
        remove_run(root)
    with Store.open(root / "grpo_long"), pytest.raises(LockedError):
        remove_run(root / "grpo_long")
    assert Run(root / "grpo_long").step == 1


def test_a_run_is_renamed_below_its_root_alone(root: Path) -> None:
    new = rename_run(root / "grpo", "sums/long/s1", root)
    assert new == root / "sums" / "long" / "s1" and Run(new).step == 1 and len(list_runs(root)) == 3
    assert rename_run(new, "best", root) == root / "best" and not (root / "sums").exists()
    odd = ("", "/tmp/x", "../x", "a/../../x", "a/b/c/d", ".hidden", "-x", "a//b", "a\nb", "latest", "x@3", "a\\b")
    for name in odd:
        with pytest.raises(StoreError, match="cannot be the name of a run"):
            rename_run(root / "best", name, root)
    with pytest.raises(StoreError, match="is there already"):
        rename_run(root / "best", "dqn", root)
    with pytest.raises(StoreError, match="would lie in the run"):
        rename_run(root / "best", "dqn/inside", root)
    (root / "out").symlink_to(root.parent)
    with pytest.raises(StoreError, match="leads out of"):
        rename_run(root / "best", "out/x", root)
    (root / "out").unlink()
    with pytest.raises(StoreError, match="is not below"):
        rename_run(root / "best", "x", root / "grpo_long")
    with Store.open(root / "dqn"), pytest.raises(LockedError):
        rename_run(root / "dqn", "other", root)
    assert sorted(r.name for r in list_runs(root)) == ["best", "dqn", "grpo_long"]


def test_tags_choose_runs_and_go_with_them(root: Path) -> None:
    with Store.open(root / "grpo"):  # also while it is written
        assert tag_run(root / "grpo", ["long", "best"]) == ("best", "long")
    tag_run(root / "dqn", ["longer"])
    assert [r.name for r in list_runs(root, ["tag:long"])] == ["grpo"]
    assert [r.name for r in list_runs(root, ["LONGER"])] == ["dqn"]
    new = rename_run(root / "grpo", "other", root)
    assert tag_run(new, remove=["best"]) == ("long",) and tag_run(new, remove=["long"]) == ()
    assert not (new / "tags.json").exists()
    for bad in ("", "two words", "x" * 41, "a\tb", "tag:x", "\ud800"):
        with pytest.raises(StoreError, match="is not a tag"):
            tag_run(new, [bad])
    with pytest.raises(StoreError, match="at most"):
        tag_run(new, [str(i) for i in range(MOST + 1)])
    for text in ("{", "[1, \"a\"]", "{}", "x" * 100_000):
        (new / "tags.json").write_text(text)
        assert read_tags(new) == (("a",) if "1" in text else ())
    assert remove_run(new) == []


def test_tags_given_at_once_are_all_kept(root: Path) -> None:
    path, start = root / "grpo", threading.Barrier(2)

    def give(who: str) -> None:
        start.wait()
        for i in range(MOST // 2):
            tag_run(path, [f"{who}{i}"])

    givers = [threading.Thread(target=give, args=(who,)) for who in "ab"]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    assert len(read_tags(path)) == MOST and not (path / "tags.lock").exists()


def test_runs_of_claims_and_studies_are_children(root: Path) -> None:
    claimed = make(root / "claims" / "0123456789abcdef-s1000", "arithmetic")
    studied = make(root / "grpo" / "children" / "a", "arithmetic")
    made = [{"method": "rlvr/x", "arm": arm, "seed": 1000, "bed": "rev"} for arm in ("baseline", "bounds")]
    (claimed / MADE).write_text(json.dumps(made))
    assert [r.name for r in list_runs(root, children=False)] == ["dqn", "grpo", "grpo_long"]
    everything = {r.path: r for r in list_runs(root)}
    assert [p for p, r in everything.items() if r.child] == [claimed, studied]
    assert everything[claimed].recipe == "rev (baseline), seed 1000 and of 1 more"
    assert [r.path for r in list_runs(root, ["rev"])] == [claimed]  # found by what it is
    assert resolve("latest", root) not in (claimed, studied)
    assert not remove_run(claimed)  # what a claim wrote there is the library's


@pytest.mark.parametrize("text", ["", "{", "[1, {}]", '{"method": 1}', "[" * 70_000])
def test_a_note_of_a_claim_that_is_damaged_says_nothing(root: Path, text: str) -> None:
    claimed = make(root / "0123456789abcdef-s3", "arithmetic")
    (claimed / MADE).write_text(text)
    assert read_made(claimed) == [] and list_runs(root, ["0123"])[0].recipe == f"baselines/{claimed.name}"


def test_latest_is_none_where_claims_alone_have_made_runs(tmp_path: Path) -> None:
    make(tmp_path / "0123456789abcdef-s3", "arithmetic")
    with pytest.raises(NoRunError, match=r"no run is in .* yet \(1 were made by claims or studies\)"):
        resolve("latest", tmp_path)
