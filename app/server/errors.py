"""Errors that end a command with one message instead of a traceback."""


class SetupError(Exception):
    """Something that the user can put right; the message says what happened, why, and what to do."""
