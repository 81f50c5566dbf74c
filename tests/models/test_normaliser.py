"""Running moments against NumPy and Gymnasium; the image encoder's shapes; features of every space."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd

from shuhari.batch import Batch
from shuhari.events import Loaded
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.convolution import Convolution, is_image
from shuhari.models.critics import ValueCritic
from shuhari.models.normaliser import Moments, merge_moments, moments
from shuhari.models.spaces import Inputs


def rows(n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(5, 3, (n, 4))).float()


def test_moments_are_those_of_gymnasium_and_of_all_rows() -> None:
    mine, theirs = Moments(4), RunningMeanStd(shape=(4,))
    pieces = [rows(n, n) for n in (1, 7, 300, 2)]
    for piece in pieces:
        mine.take(moments(piece))
        theirs.update(piece.double().numpy())
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-12)
    np.testing.assert_allclose(mine.var, theirs.var, rtol=1e-12)
    assert float(mine.count) == pytest.approx(theirs.count)
    together = torch.cat(pieces).double()
    _, mean, var = merge_moments(moments(pieces[0]), moments(torch.cat(pieces[1:])))
    torch.testing.assert_close(mean, together.mean(0))
    torch.testing.assert_close(var, together.var(0, correction=0))


def test_a_call_normalises_and_clips() -> None:
    m, x = Moments(4), rows(1000)
    assert torch.equal(m(x[:3] / 100), x[:3] / 100 * m._buffers["var"].rsqrt().float())  # before any row: as it is
    m.take(moments(x))
    y = m(x)
    assert float(y.mean(0).abs().max()) < 1e-5 and float((y.std(0, correction=0) - 1).abs().max()) < 1e-5
    assert m(torch.full((1, 4), 1e6)).tolist() == [[10.0] * 4]
    assert m(torch.full((1, 4), -1e6)).tolist() == [[-10.0] * 4]
    twin = copy.deepcopy(m)
    twin.take(moments(x + 100))
    assert not torch.equal(twin.mean, m.mean)
    other = Moments(4)
    other.load_state_dict(twin.state_dict())
    assert torch.equal(other(x), twin(x))


@pytest.mark.parametrize(
    ("shape", "channels", "features"),
    [
        ((7, 7, 3), 3, 128),
        ((3, 7, 7), 3, 128),
        ((1, 1, 1), 1, 128),
        ((84, 84, 3), 3, 512),
        ((4, 84, 84), 4, 512),
        ((4, 36, 40, 3), 12, 512),
        ((2, 3, 8, 9), 6, 128),
        ((3, 3, 3), 3, 128),
    ],
)
def test_images_of_any_size_and_layout_have_features(shape: tuple[int, ...], channels: int, features: int) -> None:
    assert is_image(spaces.Box(0, 255, shape, np.uint8)) and not is_image(spaces.Box(0, 1, shape, np.float32))
    net = Convolution(shape, orthogonal=True)
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert net.layers[0].weight.shape[1] == channels and net(x).shape == (2, features) and net.size == features
    assert net(x).dtype == torch.float32


def test_an_image_reads_the_same_with_its_channels_first_or_last() -> None:
    last, first = Convolution((6, 5, 3)), Convolution((3, 6, 5))
    first.load_state_dict(last.state_dict())
    x = torch.randint(0, 256, (4, 6, 5, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(x), first(x.permute(0, 3, 1, 2)))
    net = x.permute(0, 3, 1, 2) / 255  # the layers written out, from pixels in 0..1
    *convolutions, linear = last.layers
    for layer, stride in zip(convolutions, (1, 2, 2), strict=True):
        net = F.relu(F.conv2d(net, layer.weight, layer.bias, stride, 1))
    torch.testing.assert_close(last(x), F.relu(linear(net.flatten(1))))


def test_stacked_frames_are_channels_the_oldest_first() -> None:
    stacked, plain = Convolution((2, 7, 8, 3)), Convolution((6, 7, 8))
    plain.load_state_dict(stacked.state_dict())
    x = torch.randint(0, 256, (4, 2, 7, 8, 3), dtype=torch.uint8)
    torch.testing.assert_close(stacked(x), plain(torch.cat([x[:, 0], x[:, 1]], -1).permute(0, 3, 1, 2)))


def test_features_stand_in_order_numbers_codes_images() -> None:
    seen = spaces.Dict(
        {
            "a": spaces.MultiDiscrete([2, 3], start=[0, 5]),
            "a view": spaces.Box(0, 255, (3, 3, 3), np.uint8),
            "action_mask": spaces.MultiBinary(3),
            "b": spaces.Box(-1, 1, (2,)),
            "c": spaces.Discrete(2, start=-1),
            "d": spaces.Box(0, 9, (1, 2), np.int64),
            "e": spaces.MultiBinary(2),
        }
    )
    inputs = Inputs(seen, "m")
    x = {
        "a": torch.tensor([[1, 7]]),
        "a view": torch.randint(0, 256, (1, 3, 3, 3), dtype=torch.uint8),
        "action_mask": torch.tensor([[1, 0, 1]]),
        "b": torch.tensor([[0.25, 0.5]]),
        "c": torch.tensor([-1]),
        "d": torch.tensor([[[8, 9]]]),
        "e": torch.tensor([[0, 1]], dtype=torch.int8),
    }
    features = inputs(x)
    assert (
        features[:, :13].tolist() == [[0.25, 0.5, 8, 9, *(0, 1, 0, 0, 1), *(1, 0), *(0, 1)]] and inputs.size == 13 + 128
    )
    assert torch.equal(features[:, 13:], inputs.convolutions[0](x["a view"]))
    mask = inputs.mask(x)
    assert mask is not None and mask.tolist() == [[True, False, True]]
    assert Inputs(spaces.Box(-1, 1, (2,)), "m").mask(torch.zeros(1, 2)) is None


def test_a_role_may_see_a_part_of_what_there_is_to_see():
    space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(2), "far": spaces.Box(-9, 9, (2,)), "near": spaces.Box(-9, 9, (3,))}
    )
    seen = {"action_mask": torch.ones(4, 2), "far": torch.randn(4, 2), "near": torch.randn(4, 3)}
    near, both = Inputs(space, "m", see=("near",)), Inputs(space, "m")
    assert near.size == 3 and both.size == 5
    assert torch.equal(near(seen), seen["near"]) and torch.equal(both(seen), torch.cat([seen["far"], seen["near"]], 1))
    assert near.mask(seen).all()  # what is allowed is never left out
    batch = Batch({"mask": torch.ones(4, 1, dtype=torch.bool), **{f"context/{k}": x for k, x in seen.items()}})
    assert near.of(batch).keys() == {"near", "action_mask"}
    with pytest.raises(ValueError, match="no part 'naer'; did you mean 'near'"):
        Inputs(space, "m", see=("naer",))
    with pytest.raises(ValueError, match="no part 'near'"):
        Inputs(spaces.Box(-1, 1, (2,)), "m", see=("near",))
    task = SimpleNamespace(spaces=lambda: (space, spaces.Discrete(2)))
    policy, critic = CategoricalPolicy((8,), see=("near",)), ValueCritic((8,), norm=True)
    policy.build(task), critic.build(task)
    other = {**seen, "far": seen["far"] + 1}
    changed = batch.put({"context/far": other["far"], "action": torch.zeros(4, dtype=torch.long)})
    batch = batch.put({"action": torch.zeros(4, dtype=torch.long)})
    assert torch.equal(policy(batch).parameters(), policy(changed).parameters())
    assert not torch.equal(critic(batch).value(), critic(changed).value())


def test_a_data_set_that_is_told_again_is_counted_by_those_who_are_new_alone() -> None:
    batch = Batch({"mask": torch.ones(50, 1, dtype=torch.bool), "context": rows(50)})
    old, new = (Inputs(spaces.Box(-99, 99, (4,)), name, normalise=True) for name in ("old", "new"))
    old.observe(Loaded(batch))
    for inputs in (old, new, new):
        inputs.observe(Loaded(batch, again=True))
    for inputs in (old, new):
        assert inputs.moments is not None and round(float(inputs.moments.count)) == 50
