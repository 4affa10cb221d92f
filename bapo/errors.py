"""Errors that a user can act on: one sentence that names the file, the field and the cure."""


class UserError(Exception):
    """Wrong input or a broken file. The command line prints its text alone, without a traceback, and exits with 2."""
