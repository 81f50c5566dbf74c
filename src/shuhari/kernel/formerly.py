"""Former names of components, for error messages and for reading the recipes of older runs."""

from __future__ import annotations

FORMERLY = {  # names of an earlier version -> those of now, to be named in the error
    "transform": {"mixed": "drop_uniform_groups", "latest": "latest_only", "apart": "drop_tied_steps",
        "unheated": "untempered_logp", "halves": "split_groups", "best": "keep_best", "finished": "drop_truncated",
        "only": "keep_matching", "weigh": "advantage_weights", "modulate": "confident_errors", "credit": "oreal",
        "nearest": "nearest_action", "beside": "expert_logp", "asymmetric": "asymmetric_weights",
        "safety": "safety_weights", "tracker": "tracked_advantage", "first_pit": "first_error_pairs",
        "masks": "draw_masks"},
    "rollout": {"cascade": "cog_rethinker", "deepen": "extra_samples", "demonstrated": "with_solution",
        "foreign": "shared_answers", "lookahead": "lookahead_tree", "prefixed": "solution_prefix",
        "semantic": "semantic_branches", "guided": "guide_prefix"},
    "curriculum": {"annealed": "annealed_temperature", "cache": "cached_solutions",
        "calibrated": "entropy_temperature", "capped": "length_limit", "few": "few_problems",
        "others": "unseen_problems", "shared": "shared_groups", "starts": "snapshot_starts",
        "unsolved": "unsolved_problems", "variance": "variance_sampling"},
    "buffer": {"aside": "hard_problems", "picked": "chosen_solutions", "sampled": "kept_answers"},
    "objective": {"outcome": "token_rewards", "calibrated": "calibrated_imitation"},
}  # fmt: skip
