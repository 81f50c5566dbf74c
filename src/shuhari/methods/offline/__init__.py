"""Methods for recorded control data."""
