"""Denoising policies: flows, diffusion, masked language models."""
