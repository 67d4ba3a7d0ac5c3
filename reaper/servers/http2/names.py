"""The names of h2 that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

TESTED = ("4.4.1", "4.4.1")

H2 = Foreign(
    "h2",
    TESTED,
    {
        "h2.connection:H2Connection": "highest_inbound_stream_id state_machine streams",
        "h2.stream:H2Stream": "outbound_flow_control_window",
    },
    optional=True,  # for gunicorn: without h2 it speaks no HTTP/2
)
