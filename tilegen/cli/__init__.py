"""The command line, for `tilegen` and `python -m tilegen`."""

from tilegen.cli.command_line import main

__all__ = ["main"]
