"""To Backtrack or Not to Backtrack."""
