"""Files as people have them: D4RL's in HDF5, OGBench's with masks, Minari's in HDF5; what is odd is told by name. Files
of the same layouts are written here. And D4RL's normalised score, by its own numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.buffers.minari import Minari
from shuhari.buffers.offline import Offline
from shuhari.buffers.recordings import Stored
from shuhari.buffers.references import KNOWN, REFERENCES, find_reference, normalise
from shuhari.config.evaluation import Evaluation
from shuhari.config.recipe import load
from shuhari.loop.outcomes import Outcomes
from shuhari.loop.run import loop, open_run

PLACE = spaces.Box(-np.inf, np.inf, (2,))
TASK: Any = SimpleNamespace(spaces=lambda: (PLACE, spaces.Box(-1, 1, (1,))))
N = 6


def arrays(**change: Any) -> dict[str, Any]:
    """Two episodes of three rows as D4RL has them: the first ended by itself, the second was cut."""
    rng = np.random.default_rng(0)
    made = {
        "observations": rng.normal(size=(N, 2)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (N, 1)).astype(np.float32),
        "rewards": np.arange(N, dtype=np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1], bool),
    }
    return {k: x for k, x in {**made, **change}.items() if x is not None}


def write(path: Path, given: dict[str, Any], **groups: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, x in {**given, **groups}.items():
            file.create_dataset(name, data=x, **({"compression": "gzip"} if np.ndim(x) > 1 and np.size(x) else {}))
    return path


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("ending", [".hdf5", ".h5"])
def test_hdf5_of_d4rl_is_what_the_same_arrays_are(tmp_path: Path, ending: str, after: bool) -> None:
    given = arrays(**({"next_observations": arrays()["observations"] + 1} if after else {}))
    np.savez(tmp_path / "d.npz", **given)
    file = write(tmp_path / f"d{ending}", given, **{
        "infos/qpos": np.zeros((N, 3)), "metadata/algorithm": np.bytes_(b"SAC"), "infos/action_log_probs": np.zeros(N),
    })  # fmt: skip
    read = Stored(str(file)).read(TASK, 0)
    assert same(read, Stored(str(tmp_path / "d.npz")).read(TASK, 0))
    decides = read["mask"][:, 0]
    # without next observations the last of what was cut leads nowhere, as d4rl.qlearning_dataset leaves it out
    rows = [0, 1, 2, 3, 4, 5] if after else [0, 1, 2, 3, 4]
    assert read["reward/task"][decides, 0].tolist() == rows
    assert torch.equal(read["taken"][decides], torch.from_numpy(given["actions"])[rows])
    assert read["cont"][read["last"].unique()].tolist() == [0.0, 1.0]


def test_numbers_in_an_axis_of_their_own_and_doubles_are_read(tmp_path: Path) -> None:
    plain, given = arrays(), arrays()
    given |= {k: given[k][:, None] for k in ("rewards", "terminals", "timeouts")}
    given |= {"observations": given["observations"].astype(np.float64)}
    a = Stored(str(write(tmp_path / "a.hdf5", plain))).read(TASK, 0)
    assert same(a, Stored(str(write(tmp_path / "b.hdf5", given))).read(TASK, 0))


NOTHING = dict.fromkeys(arrays())


@pytest.mark.parametrize(("change", "groups", "told"), [
    ({"rewards": np.zeros(4)}, {}, r"rewards is an array \[4\] of float64: expected rows of numbers, 6 as of actions"),
    ({"observations": None}, {}, r"no array 'observations' outside of its groups; it has actions, rewards, terminals,"
                                 r".*: expected observations, actions, terminals at its top, as D4RL writes them"),
    (NOTHING, {"data/demo_0/actions": np.zeros((3, 1))}, r"it has data, data/demo_0, data/demo_0/act"),
    (NOTHING, {"episode_0/actions": np.zeros((3, 1))}, r'Minari: set data = \{use = "minari"'),
    ({"terminals": np.arange(N)}, {}, r"terminals is an array \[6\] of int64: expected a 0 or 1 for each row"),
    ({"actions": np.zeros((0, 1))}, {}, r"actions is an array \[0, 1\] of float64: expected rows .*as many as of"),
    ({"observations": np.full((N, 2), np.nan)}, {}, "observations: row 0 is not finite|context: row 0 is not finite"),
])  # fmt: skip
def test_another_layout_is_told_by_name(tmp_path: Path, change: Any, groups: Any, told: str) -> None:
    file = write(tmp_path / "d.hdf5", arrays(**change), **groups)
    with pytest.raises(ValueError, match=f"{file}: .*({told})"):
        Stored(str(file)).read(TASK, 0)


def test_damaged_hdf5_names_itself(tmp_path: Path) -> None:
    file = write(tmp_path / "d.hdf5", arrays())
    whole = file.read_bytes()
    for data in (b"", b"hello", whole[:400], whole[:-200]):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=f"{file}: not an HDF5 file that can be learnt from: "):
            Stored(str(file)).read(TASK, 0)
    with pytest.raises(FileNotFoundError, match=r"an .npz or .hdf5 file"):
        Stored(str(tmp_path / "none.hdf5")).read(TASK, 0)


def test_what_lies_elsewhere_is_not_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    other = write(tmp_path / "other.hdf5", arrays())
    file = write(tmp_path / "d.hdf5", arrays(observations=None))
    with h5py.File(file, "a") as opened:
        opened["observations"] = h5py.ExternalLink(str(other), "/observations")
    with pytest.raises(ValueError, match="no array 'observations' outside of its groups"):
        Stored(str(file)).read(TASK, 0)


def test_without_rewards_the_name_is_told_and_imitation_needs_none(tmp_path: Path) -> None:
    file = write(tmp_path / "d.hdf5", arrays(rewards=None))
    buffer = Offline(Stored(str(file)), size=4)
    models = {"policy": SimpleNamespace(decision=lambda taken: {"action": taken})}
    with pytest.raises(ValueError, match=r"\[reward.weights\] names 'task', which the data set does not have"):
        next(iter(buffer.draw(testing.context(task=TASK, models=models, weights={"task": 1.0}))))
    assert len(next(iter(buffer.draw(testing.context(task=TASK, models=models, weights={})))))


@pytest.mark.parametrize("name", ["h5py", "pyarrow"])
def test_a_library_that_is_missing_is_not_damage(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "d.hdf5"
    path.write_bytes(b"\x89HDF")
    if name == "h5py":
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(ModuleNotFoundError, match=r'd.hdf5: pip install "shuhari\[control\]"'):
            Stored(str(path)).read(TASK, 0)
    said = Minari(id="D4RL/door/human-v2")._explain(ImportError(f"{name} is not installed"))
    assert isinstance(said, ModuleNotFoundError) and "damaged" not in str(said)
    assert str(said).startswith('minari: D4RL/door/human-v2: pip install "shuhari[control]" (a library is missing')


@pytest.mark.filterwarnings("ignore:`eval_env` is set to None")
def test_minari_in_hdf5(tmp_path: Path, monkeypatch: Any) -> None:
    minari, _ = pytest.importorskip("minari"), pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from minari.data_collector import EpisodeBuffer

    rng, kept = np.random.default_rng(0), []
    for i, n in enumerate((3, 5)):
        seen = {"a": rng.normal(size=(n + 1, 2)), "b": rng.normal(size=(n + 1, 1))}
        ends = {"terminations": [False] * (n - 1) + [i == 0], "truncations": [False] * (n - 1) + [i == 1]}
        acted = {"actions": rng.uniform(-1, 1, (n, 1)), "rewards": [1.0] * n}
        kept.append(EpisodeBuffer(id=i, observations=seen, **acted, **ends))
    box = lambda n: spaces.Box(-np.inf, np.inf, (n,), np.float64)  # noqa: E731
    told = {"algorithm_name": "none", "author": "a", "author_email": "a@b", "code_permalink": "c", "description": "d"}
    seen, does = spaces.Dict(a=box(2), b=box(1)), spaces.Box(-1, 1, (1,), np.float64)
    for form in ("hdf5", "arrow"):
        minari.create_dataset_from_buffers(f"test/{form}-v0", kept, data_format=form, observation_space=seen,
                                           action_space=does, **told)  # fmt: skip
    assert (tmp_path / "test" / "hdf5-v0" / "data" / "main_data.hdf5").is_file()
    task: Any = SimpleNamespace(spaces=lambda: (seen, does))
    found = Minari("test/hdf5-v0").read(task, 0)
    assert same(found, Minari("test/arrow-v0").read(task, 0))
    assert torch.equal(found["context/a"][:4], torch.from_numpy(kept[0].observations["a"]).float())
    assert found["cont"][found["last"].unique()].tolist() == [0.0, 1.0]
    file = tmp_path / "test" / "hdf5-v0" / "data" / "main_data.hdf5"
    with pytest.raises(ValueError, match=r"data set of Minari: set data"):
        Stored(str(file)).read(task, 0)
    file.write_bytes(file.read_bytes()[:900])
    with pytest.raises(ValueError, match=r"minari: test/hdf5-v0: its files cannot be read .*may be damaged"):
        Minari("test/hdf5-v0").read(task, 0)


# ---------------------------------------------------------------- OGBench

RECORDED = {  # two recordings of four observations; the third of the first, and the first of the second, are the goal
    "observations": np.arange(16.0).reshape(8, 2), "actions": np.linspace(-1, 1, 8)[:, None],
    "terminals": np.array([0, 0, 0, 1] * 2),
    "rewards": np.array([-1.0, -1, 0, -1, 0, -1, -1, -1]), "masks": np.array([1.0, 1, 0, 1, 0, 1, 1, 1]),
}  # fmt: skip


def test_masks_of_ogbench_end_what_is_expected_and_not_the_recording(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **RECORDED)
    c = Stored(str(tmp_path / "d.npz"), layout="ogbench").read(TASK, 0)
    assert c["mask"][:, 0].tolist() == [True, True, True, False] * 2 and "masks" not in c
    # y = r + gamma · mask · V(next): of the transitions 0..2 and 4..6
    decides = c["mask"][:, 0]
    assert c["reward/task"][decides, 0].tolist() == [-1, -1, 0, 0, -1, -1]
    assert c["cont"][c["child"][decides]].tolist() == [1, 1, 0, 0, 1, 1]
    assert c["episode"].tolist() == [0] * 4 + [1] * 4
    np.savez(tmp_path / "e.npz", **{**RECORDED, "masks": np.zeros((8, 3))})  # another thing of that name
    assert Stored(str(tmp_path / "e.npz"), layout="ogbench").read(TASK, 0)["masks"].shape == (8, 3)


def test_the_compact_form_loses_no_transition(tmp_path: Path) -> None:
    """`valids` of ogbench.load_dataset(compact_dataset=True), which marks the last two rows of a recording."""
    np.savez(tmp_path / "a.npz", **RECORDED)
    compact = {**RECORDED, "terminals": np.array([0, 0, 1, 1] * 2), "valids": np.array([1.0, 1, 1, 0] * 2)}
    np.savez(tmp_path / "b.npz", **compact)
    a, b = (Stored(str(tmp_path / f"{n}.npz"), layout="ogbench").read(TASK, 0) for n in "ab")
    assert same(a, b) and int(a["mask"].sum()) == 6


def test_masks_against_the_layout_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **RECORDED)
    (read := Stored(str(tmp_path / "d.npz"))).read(TASK, 0)
    assert any("row 3: terminals says that the episode ended by itself, and masks that it goes on (so in 2 of 8)" in x
               and "layout = 'ogbench'" in x for x in read.odd)  # fmt: skip
    np.savez(tmp_path / "e.npz", **{**RECORDED, "masks": 1.0 - RECORDED["terminals"]})
    (read := Stored(str(tmp_path / "e.npz"))).read(TASK, 0)
    assert not any("masks" in x for x in read.odd)


# ---------------------------------------------------------------- D4RL's score


@pytest.mark.parametrize(("name", "value", "score"), [
    ("hopper-medium-v2", 3234.3, 100), ("hopper_medium_replay-v2", -20.272305, 0),
    ("halfcheetah-random-v0", (12135.0 - 280.178953) / 2, 50), ("walker2d", 1.629008 + 45.90670992, 1.0),
    ("pen-human-v1", 96.262799, 0), ("door-cloned-v1", 2880.5693087298737, 100), ("antmaze-large-play-v2", 0.375, 37.5),
    ("maze2d-umaze-dense-v1", 193.66285642381482, 100), ("kitchen-mixed-v0", 2.0, 50), ("ant-expert-v2", -325.6, 0),
])  # fmt: skip
def test_scores_by_d4rls_numbers(name: str, value: float, score: float) -> None:
    reference = find_reference(name)
    assert reference is not None and normalise(value, reference) == pytest.approx(score, abs=1e-6)


def test_names_that_are_not_d4rls_have_no_reference() -> None:
    for name in ("", "hopper-big-v2", "swimmer-medium-v2", "hopperx", "mine", "hopper-medium-v9"):
        assert find_reference(name) is None
    assert all(find_reference(name) for name in KNOWN) and len(KNOWN) == len(set(KNOWN)) == len(REFERENCES)
    with pytest.raises(ValueError, match=r"reference is 'hoper': .*did you mean 'hopper'"):
        Evaluation(reference="hoper")


def test_the_score_is_of_the_raw_return() -> None:
    ids = ["a", "b"]
    returns = {"task": np.array([3234.3, -20.272305])}
    played = Outcomes(ids, np.array([0.0, 1.0]), None, {}, (), returns, measure="other")
    assert played.scores(Evaluation(reference="hopper"))["greedy.normalised"] == pytest.approx(50)
    alone = Outcomes(ids, np.array([3234.3, 3234.3]), None, {}, measure="task")
    assert alone.scores(Evaluation(reference="hopper"))["greedy.normalised"] == pytest.approx(100)
    assert "greedy.normalised" not in alone.scores(Evaluation())


@pytest.mark.parametrize("reference", ["", "none", "hopper-medium-v2"])
def test_a_run_on_a_file_of_that_name_reports_it(tmp_path: Path, reference: str) -> None:
    rng, n = np.random.default_rng(0), 60
    given = {"observations": rng.normal(size=(n, 3)), "actions": rng.uniform(-2, 2, (n, 1)), "rewards": np.ones(n),
             "terminals": np.zeros(n), "timeouts": np.arange(n) % 20 == 19}  # fmt: skip
    np.savez(tmp_path / "pen-human-v1.npz", **given)
    small = {"steps": 1, "buffer.draws": 1, "buffer.size": 8, "evaluate.n": 2, "evaluate.reference": reference}
    file = {"use": "file", "path": str(tmp_path / "pen-human-v1.npz")}
    recipe = load("baselines/td3_bc_pendulum").with_settings({"remove": ["buffer.data"]})
    with open_run(recipe.with_settings({**small, "buffer.data": file})) as run:
        list(loop(run))
        scores = run.scores.values
    if reference == "none":
        assert "greedy.normalised" not in scores
    else:
        by = find_reference(reference or "pen")
        assert by is not None and scores["greedy.normalised"] == pytest.approx(normalise(scores["greedy"], by))
