"""The limit of RLVR: where the start catches up."""
