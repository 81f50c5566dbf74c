"""Data structures and the registry of components; no component, no configuration."""
