"""Asymptotics of Language Model Alignment."""
