"""The Effective Horizon Explains Deep RL Performance in Stochastic Environments (arXiv 2312.08369)."""
