"""The pipeline beside single-machine engines."""
