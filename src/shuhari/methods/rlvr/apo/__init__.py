"""APO: Enhancing Reasoning Ability of MLLMs via Asymmetric Policy Optimization (arXiv 2506.21655)."""
