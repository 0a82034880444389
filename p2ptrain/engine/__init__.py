"""The trainer process: the only place where torch lives."""
