"""The board's content as plain values: a function for each route below /api, with the query's parameters.

The first parameter of each is the catalogue of runs. `VIEWS` only read; those in `COSTLY` require the token. `CHANGES`
are made by POST, with the token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from shuhari.desk.board.views import (
    analyses,
    beds,
    changes,
    claims,
    compare,
    curriculum,
    curves,
    media,
    replay,
    rollouts,
    run,
    runs,
)

VIEWS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "analyses": analyses.list_analyses,
    "analysis-picture": analyses.draw_analysis,
    "beds": beds.list_beds,
    "checkpoints": media.list_checkpoints,
    "claim": claims.read_claim,
    "claimed": claims.list_claimed,
    "claims": claims.list_claims,
    "compare": compare.compare_runs,
    "csv": curves.write_table,
    "curriculum": curriculum.list_problems,
    "curves": curves.describe_curves,
    "difficulty": curriculum.describe_difficulty,
    "drawable": media.list_drawable,
    "effects": claims.draw_effects,
    "events": run.list_events,
    "findings": run.show_findings,
    "graders": replay.list_graders,
    "group": rollouts.open_group,
    "grouped": compare.group_runs,
    "picture": curves.draw_run,
    "played": media.play_episode,
    "plot": compare.plot_sides,
    "policy": media.describe_policy,
    "profile": run.show_profile,
    "recipe": run.show_recipe,
    "replay": replay.describe_replay,
    "rollouts": rollouts.list_groups,
    "run": run.show_run,
    "runs": runs.list_runs,
    "samples": media.draw_samples,
    "text": rollouts.open_text,
    "tokens": rollouts.open_tokens,
})  # fmt: skip
COSTLY = frozenset({"drawable", "played", "policy", "samples"})  # they load a run's models, or code that it names
CHANGES: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "delete": changes.delete_runs,
    "regrade": replay.regrade,
    "rename": changes.rename,
    "tag": changes.tag,
    "what-if": replay.what_if,
})  # fmt: skip
