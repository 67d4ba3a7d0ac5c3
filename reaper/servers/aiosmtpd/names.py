"""The names of aiosmtpd that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import PYTHON, Foreign

SMTP = Foreign(
    "aiosmtpd",
    ("1.4.6", "1.4.6"),
    {
        "aiosmtpd.controller:BaseController": "_factory_invoker",
        "aiosmtpd.smtp:SMTP": "_reader",
    },
)
READER = Foreign(
    PYTHON,
    ("3.11", "3.14"),
    {
        "asyncio.sslproto:SSLProtocol": "_app_protocol",
        "asyncio.streams:StreamReader": "_waiter",
    },
)
