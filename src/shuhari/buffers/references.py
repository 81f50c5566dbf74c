"""Reference returns of D4RL's data sets, between which a return is a normalised score.

Source: Fu et al. 2020, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", section 4, and the tables of
`d4rl/infos.py`: a data set's reference is that of its environment, whatever was recorded and in which version. Left
out: data sets that are not of MuJoCo's walkers, AntMaze, Adroit, the kitchen and the point mazes, and the open one of
these.
"""

from __future__ import annotations

import re

MUJOCO = r"(?:-(?:random|medium|expert|medium-replay|full-replay|medium-expert)-v[012])?"
ADROIT = r"(?:-(?:human|cloned|expert)-v[012])?"
REFERENCES = {  # pattern -> (return of a random policy, return of an expert)
    "halfcheetah" + MUJOCO: (-280.178953, 12135.0),
    "hopper" + MUJOCO: (-20.272305, 3234.3),
    "walker2d" + MUJOCO: (1.629008, 4592.3),
    "ant" + MUJOCO: (-325.6, 3879.7),
    "pen" + ADROIT: (96.262799, 3076.8331017826877),
    "hammer" + ADROIT: (-274.856578, 12794.134825156867),
    "relocate" + ADROIT: (-6.425911, 4233.877797728884),
    "door" + ADROIT: (-56.512833, 2880.5693087298737),
    r"antmaze(?:-(?:umaze|umaze-diverse|(?:medium|large)-(?:play|diverse))-v[012])?": (0.0, 1.0),
    r"kitchen(?:-(?:complete|partial|mixed)-v[0-9])?": (0.0, 4.0),
    r"maze2d-umaze(?:-sparse)?(?:-v1)?": (23.85, 161.86),
    r"maze2d-medium(?:-sparse)?(?:-v1)?": (13.13, 277.39),
    r"maze2d-large(?:-sparse)?(?:-v1)?": (6.7, 273.99),
    r"maze2d-umaze-dense(?:-v1)?": (68.537689, 193.66285642381482),
    r"maze2d-medium-dense(?:-v1)?": (44.264742, 297.4552547777125),
    r"maze2d-large-dense(?:-v1)?": (30.569041, 303.4857382709002),
}
KNOWN = tuple(re.sub(r"\(.*", "", pattern) for pattern in REFERENCES)


def find_reference(name: str) -> tuple[float, float] | None:
    """The returns of a random policy and of an expert that D4RL names for a data set, called as there
    (`hopper-medium-v2`), as its file is (`hopper_medium-v2`) or by its environment (`hopper`); None for another."""
    called = name.lower().replace("_", "-")
    return next((found for pattern, found in REFERENCES.items() if re.fullmatch(pattern, called)), None)


def normalise(value: float, reference: tuple[float, float]) -> float:
    """D4RL's normalised score: 0 for the return of a random policy, 100 for an expert's."""
    low, high = reference
    return 100 * (value - low) / (high - low)
