"""Curricula: choose the problems that are collected next."""
