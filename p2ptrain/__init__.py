"""P2ptrain: machines that people already own train one model together."""

__version__ = "0.1.0"
