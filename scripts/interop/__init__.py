"""The HTTP server against tools that others wrote."""
