"""Servers with it and without."""
