"""AceReason-Nemotron 1.1: Advancing Math and Code Reasoning through SFT and RL Synergy (arXiv 2506.13284)."""
