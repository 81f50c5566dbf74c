"""Rewards that are learnt: models of steps, judges, monitors, labels that arrive late."""
