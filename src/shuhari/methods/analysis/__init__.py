"""What training does to weights and skills."""
