"""Work spread over processes and machines. Nothing here is imported before a run needs it."""
