"""How rollouts are collected."""
