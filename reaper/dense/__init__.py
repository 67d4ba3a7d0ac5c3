"""The law of the core at a few bytes a connection."""
