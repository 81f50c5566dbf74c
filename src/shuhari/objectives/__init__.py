"""Unreduced losses."""
