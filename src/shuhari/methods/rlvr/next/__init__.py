"""Low-rank Optimization Trajectories Modeling for LLM RLVR Acceleration (arXiv 2604.11446)."""
