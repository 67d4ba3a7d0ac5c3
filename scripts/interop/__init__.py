"""The HTTP server against tools and servers that others wrote.

One rule: *what a tool says is kept*. Each trial's report and the tool's own words go to out/interop/; a tool that is
not installed is named and skipped.

Read: `tools` (what the trials share), then a trial each: `stall`, `slow`, `proxy`, `fuzz`.
"""
