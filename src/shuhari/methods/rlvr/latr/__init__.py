"""Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration (arXiv 2510.24302)."""
