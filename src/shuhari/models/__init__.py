"""Policies, critics, and rules that update one role's weights from another's."""
