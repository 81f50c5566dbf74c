"""Hyperparameters in Reinforcement Learning and How To Tune Them."""
