"""The names of tornado that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

TORNADO = Foreign(
    "tornado",
    ("6.6.1", "6.6.1"),
    {
        "tornado.http1connection:HTTP1Connection": """
            =__init__ +_disconnect_on_finish _read_finished _request_start_line _response_start_line
            +params _write_finished stream
        """,
        "tornado.http1connection:HTTP1ConnectionParameters": "+no_keep_alive",
        "tornado.iostream:BaseIOStream": "_read_buffer _write_buffer close closed write",
        "tornado.iostream:IOStream": "+read_from_fd socket",
        "tornado.httpserver:HTTPServer": "_connections =close_all_connections",
        "tornado.tcpserver:TCPServer": "=add_sockets =stop",
    },
)

ALL: tuple[Foreign, ...] = (TORNADO,)
