"""FineTuneBench: how well fine-tuning teaches facts."""
