"""Where problems, environments and graders live."""
