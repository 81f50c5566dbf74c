"""Analyses of runs (`shuhari analyze`): curves of whatever program, what an analysis is given, and what is kept."""
