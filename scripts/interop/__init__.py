"""The HTTP server against tools and servers that others wrote: `stall`, `slow`, `proxy`, `fuzz`."""
