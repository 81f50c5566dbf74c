"""Beyond One-Preference-Fits-All Alignment: Multi-Objective Direct Preference Optimization (arXiv 2310.03708)."""
