"""Work that is spread over processes and machines. Nothing here is imported before a run asks for it."""
