"""Methods that choose what to train on next."""
