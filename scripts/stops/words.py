"""What the applications of these trials say, and for how long. A trial of a reload
touches its copy of this file.
"""

from __future__ import annotations

import os

ANSWER = float(os.environ.get("STOPS_ANSWER", "5"))
"""Seconds that `/slow` takes to answer, and `/download` to send its chunks."""
CHUNKS, CHUNK = 50, b"x" * 1000
WHOLE = b"whole"
"""What both of them end with."""
TICK = b"data: tick\n\n"
LAST = b"retry: 500\ndata: goodbye\n\n"
"""What a stream sends that was told of the stop."""
ENDED = "the lifespan has ended"
"""Printed when the application was told that the server has stopped."""
