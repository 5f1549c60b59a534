"""Tries policies on traces: the service's scheduler and policies, on a virtual clock."""
