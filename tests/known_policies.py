"""What an analysis is given, of policies whose chances of a right answer are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shuhari.kernel.findings import Answers


class Known:
    """`chances`: policy -> that of each problem; the first is the start. `write`: what a policy answers to a problem,
    by (policy, problem, right, a number in [0, 1)); the digit of right, if it is not given."""

    seed = 0

    def __init__(
        self, chances: Mapping[str, Sequence[float]], write: Callable[[str, int, bool, float], str] | None = None
    ) -> None:
        self.chances, self.names = chances, tuple(chances)
        self.write = write or (lambda name, i, right, x: str(int(right)))

    def draw_from(self, name: str) -> np.random.Generator:
        return np.random.default_rng(len(name))

    def note(self, text: str) -> None:
        """Nobody reads it."""

    def sample(
        self, n: int, samples: int, *, draw: int = 0, which: Sequence[int] | None = None, **_: object
    ) -> list[Answers]:
        out = []
        for i in range(len(self.names)) if which is None else which:
            name = self.names[i]
            p = np.array(self.chances[name])[:n, None]
            rng = np.random.default_rng([i, draw])
            right, more = rng.random((len(p), samples)) < p, rng.random((len(p), samples))
            texts = []
            for j, row in enumerate(right.tolist()):
                pairs = zip(row, more[j].tolist(), strict=True)
                texts.append([self.write(name, j, hit, x) for hit, x in pairs])
            ids = list(map(str, range(len(p))))
            out.append(Answers(name, ids, ids, texts, right.astype(float), np.ones(right.shape)))
        return out
