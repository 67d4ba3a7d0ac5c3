"""A growing journal followed with Structured Streaming."""
