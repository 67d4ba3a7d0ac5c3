"""hypercorn's settings in the world of its own limit: `hypercorn -c python:...`."""

keep_alive_max_requests = 8
