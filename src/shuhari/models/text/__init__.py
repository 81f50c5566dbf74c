"""Causal language models: the forward over packed tokens, sampling with a cache, tokenizers, adapters."""
