"""Errors made for people, each with the exit code that a command ends with.

The codes are stable: 0 ok, 2 bad arguments, 3 missing prerequisite, 4 missing resource, 5 invalid input, 6 runtime,
7 partial success.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_PARTIAL = 7


class RankerError(Exception):
    """Base of every error this project raises on purpose; the message says what, where and what to do."""

    exit_code = 6


class ArgumentError(RankerError):
    """An argument or a config value that cannot be used."""

    exit_code = 2


class PrerequisiteError(RankerError):
    """Something that must be installed first; the message carries the pip command."""

    exit_code = 3


class ResourceError(RankerError):
    """A file, model, data set or wheel that is not there, or is not what its hash says."""

    exit_code = 4


class InputError(RankerError):
    """Data that was read but is not valid, with its place."""

    exit_code = 5


def missing_extra(package: str, extra: str) -> PrerequisiteError:
    """Return the error for an optional package that is not installed.

    Parameters
    ----------
    package : str
        Import name that failed.
    extra : str
        Extra of this distribution that brings it.

    Returns
    -------
    PrerequisiteError
        Ready to be raised, with the exact command.
    """
    return PrerequisiteError(f"{package} is not installed; in the project's folder, run: {install_command(extra)}")


def install_command(extra: str = "") -> str:
    """Return how this distribution is installed from its own folder, with an extra: it is on no package index."""
    return f"pip install -c constraints/newest.txt -e '.[{extra}]'" if extra else "pip install -e ."
