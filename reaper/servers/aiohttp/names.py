"""The names of aiohttp that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

AIOHTTP = Foreign(
    "aiohttp",
    ("3.12", "3.14.5"),
    {
        "aiohttp.base_protocol:BaseProtocol": "connection_made",
        "aiohttp.http_parser:HttpRequestParser": "feed_data feed_eof",
        "aiohttp.http_writer:StreamWriter": "_compress _eof length output_size",
        "aiohttp.web_protocol:RequestHandler": """
            _current_request _messages _parser _payload_parser +_request_factory _request_in_progress _waiter close
            connection_lost eof_received transport
        """,
        "aiohttp.web_request:BaseRequest": "+_message _payload_writer",
        "aiohttp.web_response:StreamResponse": "_eof_sent _payload_writer _req write write_eof",
        "aiohttp.web_runner:AppRunner": "=__init__ +_shutdown_timeout",
        "aiohttp.web_server:Server": "_kwargs connections +pre_shutdown +request_handler +shutdown",
    },
)

ALL: tuple[Foreign, ...] = (AIOHTTP,)
