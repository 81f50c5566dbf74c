"""Reasoning or Memorization? RandomCalculation."""
