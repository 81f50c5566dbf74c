"""Hyperparameter Optimization for Multi-Objective Reinforcement Learning."""
