"""Echo Chamber."""
