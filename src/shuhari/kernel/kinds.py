"""The kinds of components, the package of each, and the name of the policy-gradient term in recipes."""

from __future__ import annotations

# kind -> the package whose modules hold our own, beside those of methods
KINDS = {
    "task": "tasks",
    "reward": "rewards",
    "curriculum": "curricula",
    "predictor": "curricula",
    "rollout": "rollouts",
    "environments": "rollouts",
    "window": "rollouts",
    "engine": "engines",
    "model": "models",
    "buffer": "buffers",
    "recording": "buffers",
    "transform": "transforms",
    "objective": "objectives",
    "optimiser": "optimisers",
    "learner": "learners",
    "follow": "models",
    "metric": "metrics",
    "study": "methods",
    "quantity": "lab.claims",
    "analysis": "methods",
    "run_analysis": "methods",
    "world": "tasks.worlds",
}

LOSS = "loss"  # the term of the policy gradient, in every recipe
