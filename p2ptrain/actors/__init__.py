"""Trio tasks with one inbox each."""
