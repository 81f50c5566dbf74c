"""Policy Regularized Distributionally Robust MDPs with Linear Function Approximation (arXiv 2510.14246)."""
