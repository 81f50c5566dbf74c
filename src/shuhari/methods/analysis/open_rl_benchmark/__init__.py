"""Open RL Benchmark: curves in an open table, and statistics of them."""
