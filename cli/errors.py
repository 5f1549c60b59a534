"""Failures that the operator can mend."""


class UsageError(Exception):
    """The command cannot run as it was given. The message is one plain sentence."""
