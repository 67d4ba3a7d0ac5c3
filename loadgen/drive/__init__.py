"""The processes that do it."""
