"""Settings that a model cannot honour are errors; what rows say of their sampling is read back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.data import Ramp, Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.critics import ContinuousQ, DiscreteQ
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy
from shuhari.models.sampling import epsilon, first_temperature, honour, temperature, uniform_share
from shuhari.models.spaces import Inputs
from shuhari.models.tabular import Tabular

SEEN, CHOICE, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Box(-1, 1, (2,))
MODELS = {
    "tabular": (Tabular, spaces.Discrete(5), CHOICE, {"temperature", "greedy", "epsilon"}),
    "categorical": (CategoricalPolicy, SEEN, CHOICE, {"temperature", "greedy", "epsilon"}),
    "gaussian": (GaussianPolicy, SEEN, BOX, {"greedy"}),
    "squashed": (SquashedPolicy, SEEN, BOX, {"greedy", "epsilon"}),
    "q_discrete": (DiscreteQ, SEEN, CHOICE, {"greedy", "epsilon"}),
}
ON = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "greedy": True,
    "stop": ("x",),
    "ban": (1,),
    "top": 2,
    "epsilon": 0.1,
}


def made(name: str) -> Any:
    cls, seen, does, _ = MODELS[name]
    model = cls()
    model.build(SimpleNamespace(spaces=lambda: (seen, does)))
    return model


@pytest.mark.parametrize("setting", ON)
@pytest.mark.parametrize("name", MODELS)
def test_a_setting_is_honoured_or_refused_by_name(name: str, setting: str) -> None:
    model = made(name)
    contexts = torch.zeros(2, dtype=torch.long) if name == "tabular" else torch.zeros(2, 3)
    sampling = replace(Sampling(), **{setting: ON[setting]})
    noise = CounterNoise(keys(0, n=2))
    if setting in MODELS[name][3]:
        assert len(model.sample(contexts, sampling, noise=noise)) == 2
    else:
        with pytest.raises(ValueError, match=rf"sampling\.{setting} = .* '{name}' cannot honour it; .*greedy"):
            model.sample(contexts, sampling, noise=noise)


def test_a_length_limit_is_no_setting_of_a_single_decision() -> None:
    honour(Sampling(max_new=3), (), "any")


def test_numbers_and_schedules() -> None:
    assert first_temperature(Sampling(temperature=0.5)) == 0.5
    assert first_temperature(Sampling(temperature=Ramp(2.0, 1.0, 10))) == 2.0
    assert uniform_share(Sampling(epsilon=0.25)) == 0.25
    with pytest.raises(ValueError, match=r"epsilon is a schedule, Ramp\(start=1.0.*expected a number"):
        uniform_share(Sampling(epsilon=Ramp(1.0, 0.0, 10)))


def test_rows_that_do_not_say_were_sampled_plainly() -> None:
    nan = float("nan")
    batch = Batch(
        {
            "mask": torch.ones(4, 1, dtype=torch.bool),
            "temperature": torch.tensor([[0.5], [nan], [0.0], [2.0]]),
            "epsilon": torch.tensor([0.3, nan, -1.0, 1.0]),
        }
    )
    t, e = temperature(batch), epsilon(batch)
    assert t is not None and t.tolist() == [[0.5], [1.0], [1.0], [2.0]]
    assert e is not None and e.squeeze(1).tolist() == pytest.approx([0.3, 0.0, 0.0, 1.0])
    plain = Batch({"mask": torch.ones(4, 1, dtype=torch.bool)})
    assert temperature(plain) is None and epsilon(plain) is None


@pytest.mark.parametrize(
    ("model", "seen", "does", "what"),
    [
        (Tabular, SEEN, CHOICE, "'tabular' needs a Discrete observation space"),
        (CategoricalPolicy, SEEN, BOX, "'categorical' needs a Discrete, MultiDiscrete or MultiB"),
        (CategoricalPolicy, spaces.Dict(a=spaces.Text(3)), CHOICE, "'categorical' reads Box, Discrete, MultiDiscrete"),
        (GaussianPolicy, SEEN, CHOICE, "'gaussian' needs a Box action space"),
        (SquashedPolicy, SEEN, spaces.Box(-np.inf, 1, (2,)), "'squashed' scales to bounds"),
        (ContinuousQ, SEEN, CHOICE, "'q_continuous' needs a Box action space"),
    ],
)
def test_a_space_that_does_not_fit_is_named(model: Any, seen: Any, does: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        model().build(SimpleNamespace(spaces=lambda: (seen, does)))


def test_a_task_of_text_has_no_spaces() -> None:
    with pytest.raises(TypeError, match="'tabular' needs a task with spaces"):
        Tabular().build(SimpleNamespace(spaces=lambda: None))


def test_observations_become_flat_rows() -> None:
    one_hot = Inputs(spaces.Discrete(3, start=5), "m")
    assert one_hot(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    image = Inputs(spaces.Box(0, 255, (2, 2), np.uint8), "m")
    assert image.size == 4 and image(torch.arange(8, dtype=torch.uint8).view(2, 2, 2)).tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    number = Inputs(spaces.Box(-1, 1, ()), "m")
    assert number.size == 1 and number(torch.tensor([0.5, 1.0])).tolist() == [[0.5], [1.0]]
