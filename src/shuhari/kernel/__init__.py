"""What the data are made of, and how components are named: no component, no configuration."""
