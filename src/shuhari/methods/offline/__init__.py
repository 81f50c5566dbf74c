"""Recorded data of control."""
