"""Sweeps: settings of a recipe, searched by optuna on tuning seeds and tested on other seeds (`shuhari sweep`)."""
