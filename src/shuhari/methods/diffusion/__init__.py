"""Policies that denoise: flows, diffusion, masked language models."""
