"""Published numbers, measured again: the protocols, their runs, and ours beside the published ones."""
