"""Values as tables, and rows that ask them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.needs import evaluate


class Numbers:
    """A value a state, or one a state and action; `n` members of which the later lie higher by 1 each."""

    def __init__(self, table, members=0):
        self.table, self.members = torch.tensor(table, dtype=torch.float64, requires_grad=True), members
        self.module = None

    def __call__(self, batch):
        at = (batch["context"].long(), batch["action"].long())[: self.table.dim()]
        x = self.table[at][:, None]
        value = x[..., None] + torch.arange(self.members) if self.members else x
        return SimpleNamespace(value=lambda: value)


def rows(context, action=None, after=None, reward=None, cont=None):
    n = len(context)
    after, reward, cont = after or [0] * n, reward or [0.0] * n, cont or [1.0] * n
    return Batch({
        "context": torch.tensor([*context, *after]), "action": torch.tensor([*(action or [0] * n), *[0] * n]),
        "reward": torch.tensor([*reward, *[0.0] * n], dtype=torch.float64)[:, None],
        "cont": torch.tensor([1.0] * n + list(cont), dtype=torch.float64),
        "child": torch.tensor([*range(n, 2 * n), *[-1] * n]), "mask": torch.tensor([[True]] * n + [[False]] * n),
        "logp": torch.zeros(2 * n, 1),
    }, torch.arange(n), stream="rl")  # fmt: skip


def asked(objective, batch, models):
    ctx = testing.context(models=models)
    put = batch.put(evaluate(batch, objective.needs, models, [objective.role]))
    return put, *objective(put, ctx)
