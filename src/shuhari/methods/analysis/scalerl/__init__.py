"""ScaleRL: how far a score would rise with more compute."""
