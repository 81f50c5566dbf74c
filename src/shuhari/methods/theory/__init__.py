"""Exactly solvable problems: tables and linear learners."""
