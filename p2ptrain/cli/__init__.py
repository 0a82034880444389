"""The command line."""

from p2ptrain.cli.app import main

__all__ = ["main"]
