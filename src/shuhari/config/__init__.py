"""Configuration: recipes, overlays, settings, and the components that are built from them."""
