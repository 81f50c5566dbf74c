"""Policies, critics, and the rules by which one role follows another."""
