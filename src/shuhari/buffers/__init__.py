"""Buffers: keep collected or recorded data, from which a learner draws."""
