"""Adapters to the disk."""
