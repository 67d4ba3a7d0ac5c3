"""Realistic journals of any size, for tests and measurements."""
