"""Stop Regressing: Training Value Functions via Classification for Scalable Deep RL (arXiv 2403.03950)."""
