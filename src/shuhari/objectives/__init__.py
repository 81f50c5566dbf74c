"""Objectives: losses before reduction."""
