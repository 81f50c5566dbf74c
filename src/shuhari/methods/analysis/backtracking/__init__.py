"""How Much Backtracking is Enough?"""
