"""Provable General Function Class Representation Learning in Multitask Bandits and MDPs."""
