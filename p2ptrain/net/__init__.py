"""Adapters to the network."""
