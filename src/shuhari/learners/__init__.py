"""Learners: turn batches into model updates."""
