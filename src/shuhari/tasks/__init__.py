"""Tasks: problems, environments and graders."""
