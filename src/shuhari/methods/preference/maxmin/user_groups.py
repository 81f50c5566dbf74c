"""Users in groups, each with a reward model of its own, and a policy for the group that is worst off.

Source: Chakraborty et al. 2024, "MaxMin-RLHF: Towards Equitable Alignment of Large Language Models with Diverse Human
Preferences", algorithms 1 and 2. Left out: restarts of the assignment, and a soft minimum.

Axes: `B` rows, `P` pairs, `U` groups of users.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Count, ShareBelow1, check
from shuhari.data import nearest
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.preference import read_links, scores
from shuhari.ports import Ctx


@register("transform", "user_groups")
@dataclass
class UserGroups:
    """The hard E-step of a mixture of reward models: each user's pairs go to the model that explains them best.

    Makes for each role of `roles` the links of its name [P', 2]: the pairs of the users in its group, from which
    `preference` trains it, as the M-step. A user belongs to the model with the largest log-likelihood of the user's
    pairs, log sigmoid(r(better) - r(worse)), summed over batches, of which older ones count less. New models explain
    all pairs alike, so users come into the groups in turn at first, and stay there for `first` batches. Raises KeyError
    for links without the column `by`, ValueError for a user that is not known (NaN).
    """

    roles: tuple[str, ...] = ("first", "second")
    """Roles of the reward models, one for each group: a value for each answer, at its last token."""
    by: str = "user"
    """Column of the links with the number of the user who compared the pair."""
    memory: ShareBelow1 = 0.9
    """Weight of the log-likelihoods of earlier batches at each new one; 0 keeps none."""
    first: Count = 50
    """Number of batches in which users stay in their first groups."""
    links: str = "pairs"
    """Name of the links that hold the pairs of all users."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"batches": 0, "group": {}, "likelihood": {}})

    def __post_init__(self) -> None:
        check(self)
        if not self.roles or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"user_groups: roles are {self.roles}: expected one or more, each once")

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(Need((role,), "value") for role in self.roles)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"links/{self.links}",)

    @property
    def stamps(self) -> tuple[str, ...]:
        return tuple(f"links/{role}" for role in self.roles)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        index, columns = read_links(batch, self.links)
        if self.by not in columns:
            raise KeyError(f"user_groups: links {self.links!r} have no column {self.by!r}; {nearest(self.by, columns)}")
        if bool((user := columns[self.by]).isnan().any()):
            raise ValueError(f"user_groups: {int(user.isnan().sum())} pairs have no {self.by!r}: expected a number")
        group = self._assign(user.long(), find_likelihoods(batch, self.needs, index))
        for u, role in enumerate(self.roles):
            mine = group == u
            batch = batch.link(role, index[mine], {k: x[mine] for k, x in columns.items()})
        return batch

    def _assign(self, user: Tensor, likelihood: Tensor) -> Tensor:
        """Returns the group [P] of the user of each pair; likelihood: [P, U]."""
        state = self.state
        old, groups = state["likelihood"], dict(state["group"])
        sums = {
            name: [self.memory * x for x in row]
            for name, row in old.items()
        }
        for i in user.unique().tolist():
            here = likelihood[user == i].double().sum(0).tolist()
            before = sums.get(str(i), [0.0] * len(self.roles))
            sums[str(i)] = [a + b for a, b in zip(before, here, strict=True)]
            groups.setdefault(str(i), len(groups) % len(self.roles))
        if state["batches"] >= self.first:
            groups = {name: max(range(len(self.roles)), key=sums[name].__getitem__) for name in groups}
        self.state = {"batches": state["batches"] + 1, "group": groups, "likelihood": sums}
        return torch.tensor([groups[str(i)] for i in user.tolist()], dtype=torch.long)


def find_likelihoods(batch: Batch, needs: tuple[Need, ...], index: Tensor) -> Tensor:
    """Return [P, U] the log-likelihood of each pair (better, worse) of index [P, 2] under each reward model."""
    gaps = []
    for need in needs:
        better, worse = scores(batch, (need,), "row")[index].unbind(1)
        gaps.append(better - worse)
    return F.logsigmoid(torch.stack(gaps, 1))


@register("transform", "worst_group")
@dataclass
class WorstGroup:
    """Trains on the reward of the group of users that is worst off now.

    Each reward of `names` is compared with its mean over the first batch, in units of its standard deviation there, as
    models of preferences have no common zero or scale. `reward` becomes that of the group whose mean over the batch has
    risen least, divided by that deviation. Ungraded samples stay ungraded. Put it before `advantage`, which has to
    subtract a mean. Raises ValueError for a batch without a graded sample.
    """

    names: tuple[str, ...] = ("first", "second")
    """Names of the rewards of the groups, `reward/<name>`."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"start": {}})
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("reward",)

    def __post_init__(self) -> None:
        check(self)
        if not self.names:
            raise ValueError("worst_group: names is empty: expected the names of one reward or more")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(f"reward/{name}" for name in self.names)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        whole = ends(batch) & find_usable(batch)
        start, risen = dict(self.state["start"]), dict[str, float]()
        for name in self.names:
            x = batch.outcome(f"reward/{name}")[whole].double()
            x = x[~x.isnan()]
            if not len(x):
                raise ValueError(f"worst_group: no sample has a reward {name!r}: expected one at least")
            start.setdefault(name, [float(x.mean()), max(float(x.std(correction=0)), 1e-8)])
            mean, deviation = start[name]
            risen[name] = (float(x.mean()) - mean) / deviation
        self.state = {"start": start}
        worst = min(self.names, key=risen.__getitem__)  # of equal ones the first
        return batch.put({"reward": batch[f"reward/{worst}"] / start[worst][1]})
