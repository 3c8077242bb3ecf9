"""The one error that this package shows to a person."""


class ClusterError(Exception):
    """Something the person at the keyboard can change; the message is one line and says what."""
