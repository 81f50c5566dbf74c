"""Evaluation metrics that need no rollout: of models, answers and weights."""
