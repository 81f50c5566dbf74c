"""What the board says, in plain values: a function for each address below /api, its parameters those of the query.

The first parameter of each is the catalogue of runs. `VIEWS` read; `CHANGES` are asked by POST, with the token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from shuhari.tools.board.views import beds, claims, compare, media, rollouts, runs

VIEWS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "beds": beds.list_beds,
    "checkpoints": media.list_checkpoints,
    "claim": claims.read_claim,
    "claimed": claims.list_claimed,
    "claims": claims.list_claims,
    "compare": compare.compare_runs,
    "effects": claims.draw_effects,
    "group": rollouts.open_group,
    "grouped": compare.group_runs,
    "media": media.draw,
    "played": media.play_episode,
    "plot": compare.plot_sides,
    "policy": media.tell_policy,
    "rollouts": rollouts.list_groups,
    "runs": runs.list_runs,
    "text": rollouts.open_text,
    "tokens": rollouts.open_tokens,
})  # fmt: skip
CHANGES: Mapping[str, Callable[..., Any]] = MappingProxyType({
})  # fmt: skip
