"""The codec: every type comes back as itself, nothing else gets in, and no bytes from outside do harm."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shuhari.batch import Batch
from shuhari.data import EMPTY, FrozenDict, Problem, Ramp, Request, Sampling, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.store import codec
from shuhari.store.tensors import NAMES
from shuhari.store.tensors import pack as pack_tensors


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and bits; an independent walk over both trees."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, n), getattr(b, n)) for n in a.__dataclass_fields__)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def trip(tree: Any) -> Any:
    return codec.loads(codec.dumps(tree))


text = st.text(st.characters(), max_size=8)  # every code point, lone surrogates among them
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=700)
    | hnp.arrays(hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.unsigned_integer_dtypes() | hnp.floating_dtypes()
                 | hnp.complex_number_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=12))
    | hnp.arrays(np.float32, (150,)).map(torch.from_numpy)
    | st.sampled_from(list(Status)) | st.builds(Ramp, st.floats(0, 1), st.floats(0, 1), st.floats(1, 9))
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$tensor", "$tuple", "$", "a/b"]), inner, max_size=2)
        | st.dictionaries(text, inner, max_size=3).map(FrozenDict)
    ),
    max_leaves=8,
)


@settings(max_examples=250, deadline=None)
@given(trees)
def test_any_tree_comes_back_as_it_was(tree: Any) -> None:
    assert same(tree, trip(tree))


@settings(max_examples=60, deadline=None)
@given(trees)
def test_the_json_is_strict_json(tree: Any) -> None:
    value, _ = codec.encode(tree)
    json.loads(codec.to_json(value), parse_constant=pytest.fail)


@pytest.mark.parametrize("dtype", [*NAMES, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 2)])
def test_tensors_of_every_type(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.arange(max(1, math.prod(shape)))[: math.prod(shape)].reshape(shape).to(dtype)
    assert same(x, trip([x])[0])


@pytest.mark.parametrize("dtype", "b1 i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 g c8 c16 >f4 >i8".split())
@pytest.mark.parametrize("n", [0, 3, 2000])
def test_arrays_of_every_type(dtype: str, n: int) -> None:
    x = np.arange(n).astype(dtype)
    back = trip({"x": x})["x"]
    assert same(x, back) and back.flags.writeable


def test_numbers_keep_their_types() -> None:
    numpy = [np.float64(1), np.float32(1), np.bool_(True), np.int64(1), np.uint64(2**64 - 1), np.complex64(1j)]
    tree = [True, 1, 1.0, 2**127, -(2**70), *numpy]
    assert [type(x) for x in trip(tree)] == [type(x) for x in tree] and trip(tree) == tree


def test_views_strides_and_read_only_memory() -> None:
    x = np.arange(4000, dtype=np.float32).reshape(40, 100)
    frozen = x.copy()
    frozen.flags.writeable = False
    arrays = [x.T, x[::-1], x[:, ::3], np.broadcast_to(x[0], (40, 100)), frozen, np.asfortranarray(x)]
    assert all(np.array_equal(a, b) for a, b in zip(arrays, trip(arrays), strict=True))
    t = torch.from_numpy(x)
    tensors = [t.T, t[:, ::3], t[3:], t.expand(2, 40, 100), torch.complex(t, t).conj(), torch.nn.Parameter(t)]
    back = trip(tensors)
    assert all(torch.equal(a.detach().resolve_conj(), b) for a, b in zip(tensors, back, strict=True))
    assert not back[-1].requires_grad


def test_tied_weights_are_stored_once_and_share_memory_again() -> None:
    w = torch.randn(50, 50)
    tree = {"embed": w, "head": w, "copy": w.clone()}
    _, tensors = codec.encode(tree)
    assert len(tensors) == 2
    back = trip(tree)
    back["embed"][0, 0] = 7.0
    assert back["head"][0, 0] == 7.0 and back["copy"][0, 0] == w[0, 0]


def test_tensor_names_are_paths_and_never_collide() -> None:
    x = torch.zeros(2)
    value, tensors = codec.encode({"a": {"b": x}, "a/b": x + 1, "__metadata__": x + 2, "\ud800": x + 3})
    assert "a/b" in tensors and "__metadata__" not in tensors and len(tensors) == 4
    assert same(codec.decode(value, tensors)["a/b"], x + 1)


def test_other_mappings_become_dicts() -> None:
    assert trip(MappingProxyType({"a": 1})) == {"a": 1} and type(trip(OrderedDict(a=1))) is dict
    assert trip(Problem("t", "i", "p")).info is EMPTY


def step(k: int = 3, parent: int | None = None, **fields: Any) -> Step:
    context = np.arange(4 if parent is None else 4 + k, dtype=np.int32)
    action = np.arange(4, 4 + k, dtype=np.int32)
    return Step.of(context, action, np.linspace(-1, 0, k).astype(np.float32), 5, parent=parent, **fields)


def request() -> Request:
    start = {"rng": 2**100, "raw": b"\0\xff"}
    problem = Problem("sum", "7", ({"role": "user", "content": "1+1"},), answer=2, start=start)
    sampling = Sampling(temperature=Ramp(1.0, 0.5, 4, shape="cosine"), stop=("\n",), ban=(3,))
    return Request(problem, 2, sampling, (step(),), {"max_turns": 2}, FrozenDict(level=0.5), "7#1")


def trajectory() -> Trajectory:
    reward = {"score": 1.0, "cost": np.zeros(3, np.float32)}
    first = step(reward=reward, views={"critic": np.ones(2)}, info={"text": "é"})
    steps = (first, step(parent=0), Step.closing(np.ones(3), 0, 0.0))
    return Trajectory(request(), steps, Status.CUT, {"seconds": math.nan})


def test_wire_types() -> None:
    assert same(trajectory(), trip(trajectory()))
    assert trip(request()).sampling.temperature(4) == 0.5


def test_batches() -> None:
    batch = pack([trajectory(), trajectory()])
    view = batch.put({"advantage": torch.randn(len(batch))}).take(torch.tensor([0, 1, 3]))
    view = view.link("pairs", torch.tensor([[0, 2]]), {"margin": torch.tensor([0.5])})
    back = trip({"batch": view})["batch"]
    assert isinstance(back, Batch) and len(back) == 3 and back.stream == view.stream
    for name in view.names() - {"step", "parent", "child"}:
        assert same(view[name], back[name]), name
    assert all(same(a, b) for a, b in zip(view.steps, back.steps, strict=True))
    index, columns = back.links["pairs"]
    assert same(index, torch.tensor([[0, 2]])) and same(columns["margin"], torch.tensor([0.5]))
    assert same(back.outcome("reward/score"), view.flat().outcome("reward/score"))


def test_rings() -> None:
    ring = codec.Ring.zeros(10, {"x": torch.zeros(1, 2)}, block=4)
    ring.append({"x": torch.randn(7, 2)})
    back = trip(ring)
    assert same(back.columns, ring.columns) and (back.written, back.block) == (7, 4)


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": [1, {"b": object()}]}, "a/1/b is a builtins.object"),
        ({"a": {1, 2}}, "a is a builtins.set"),
        ({"f": print}, "f is a builtins.builtin_function"),
        ({"a": {3: 1}}, r"a has the key 3 \(int\): expected text, '3'"),
        (Pair(1, 2), "the tree is a .*Pair"),
        ([np.array(["x"])], "0 is an array of <U1"),
        ([np.array([None])], "0 is an array of object"),
        ([np.datetime64("2020-01-01")], "0 is a numpy.datetime64"),
        ([torch.zeros(3, device="meta")], "0 is a tensor with layout .* on meta"),
        ([torch.zeros(3, 3).to_sparse()], "0 is a tensor with layout torch.sparse"),
        ([Step.of(np.zeros(1), object())], "0/action is a builtins.object"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_in_the_table_is_named_with_its_path(tree: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        codec.dumps(tree)


def test_a_tree_that_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        codec.dumps(loop)
    deep: Any = 1
    for _ in range(99):
        deep = (deep,)
    assert trip(deep) == deep


def piece(value: Any, tail: bytes = b"") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"shuhari1" + len(body).to_bytes(8, "little") + body + tail


@pytest.mark.parametrize(
    "data",
    [
        b"", b"shuhari1", b"\x80\x04K\x01.", piece(b"{"), piece(b"\xff"), piece(b"[NaN]"), piece(b"[1e999]"),
        piece(b"[" * 100_000), piece(b"[" * 700 + b"]" * 700), piece([1], b"tail that is no tensors"),
        b"shuhari1" + (2**63).to_bytes(8, "little") + b"[]",
        piece({"$tensor": "missing"}), piece({"$nonsense": 1}), piece({"$tuple": 1, "$frozen": {}}),
        piece({"$tuple": 3}), piece({"$scalar": ["<f4", ""]}),
        piece({"$array": ["|O", [1], "AAAAAAAAAAA="]}), piece({"$array": ["<i4", [2**40], "AAAA"]}),
        piece({"$array": ["<i4", [0, 2**70], ""]}), piece({"$array": ["i4,i4", [1], "AAAAAAAAAAA="]}),
        piece({"$float": "1e5"}), piece({"$int": "one"}), piece({"$Status": "fine"}), piece({"$bytes": "*"}),
        piece({"$frozen": []}), piece({"$map": [[1, 2]]}),
        piece({"$Problem": {"task": "a", "id": "b", "promt": "c"}}), piece({"$Problem": {"task": 1}}),
        piece({"$Sampling": {"temperature": -1.0}}), piece({"$Trajectory": {"request": 1, "steps": {"$tuple": []}}}),
        piece({"$Request": {"problem": {"$Problem": {"task": "", "id": "", "prompt": 0}}, "prefix": {"$tuple": [1]}}}),
        piece({"$Batch": {"columns": {}, "arena": {"$tuple": []}, "links": {}, "stream": None}}),
        piece({"$Ring": {"columns": {}}}), piece({"$Blocks": {"files": []}}), piece({"$Step": []}),
        piece({"$os.system": "ls"}),
    ],
)  # fmt: skip
def test_bytes_from_outside_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.loads(data)


def test_rows_without_bytes_cannot_claim_a_size() -> None:
    tail = safetensors.torch.save({"x": torch.zeros(2**40, 0), "m": torch.zeros(2**40, 0, dtype=torch.bool)})
    ring = {"$Ring": {"columns": {"x": {"$tensor": "x"}}, "written": 2**40}}
    batch = {"$Batch": {"columns": {"mask": {"$tensor": "m"}}, "arena": {"$tuple": []}, "links": {}, "stream": None}}
    for value in (ring, batch):
        with pytest.raises(codec.CodecError, match="empty"):
            codec.loads(piece(value, tail))


def test_a_batch_whose_pointers_leave_it() -> None:
    for name, rows in (("step", [0, 5]), ("parent", [-1, 2]), ("child", [9, -1])):
        columns = {"mask": torch.ones(2, 1, dtype=torch.bool), name: torch.tensor(rows)}
        with pytest.raises(ValueError, match=name):
            codec.from_tree({"columns": columns, "arena": (), "links": {}, "stream": None})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    good = codec.dumps({"t": trajectory(), "x": torch.arange(40), "y": (1, b"z" * 600)})
    at = data.draw(st.integers(0, len(good) - 1))
    raw = bytearray(good)
    if data.draw(st.booleans()):
        raw[at] = data.draw(st.integers(0, 255))
    else:
        del raw[at:]
    with suppress(codec.CodecError):
        codec.loads(bytes(raw))


def test_the_size_limit() -> None:
    data = codec.dumps(torch.zeros(1000))
    with pytest.raises(codec.CodecError, match="at most 100"):
        codec.loads(data, limit=100)


def test_the_tensor_part_is_what_the_library_reads_and_is_aligned() -> None:
    tensors = {"a": torch.ones(3, dtype=torch.bool), "b": torch.randn(5, 2), "c": torch.tensor(2.0).double()}
    data = b"".join(pack_tensors(tensors))
    back = safetensors.torch.load(data)
    assert all(same(tensors[n], back[n]) for n in tensors)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0 and all(h["data_offsets"][0] % tensors[n].element_size() == 0 for n, h in header.items())
