"""What turns a batch into better models."""
