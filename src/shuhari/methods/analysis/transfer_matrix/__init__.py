"""Can One Domain Help Others? A signed table of transfer."""
