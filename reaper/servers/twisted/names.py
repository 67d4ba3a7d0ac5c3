"""The names of Twisted that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

TESTED = ("26.10.0", "26.10.0")

TCP = Foreign(
    "twisted",
    TESTED,
    {
        "twisted.internet.tcp:Port": "socket =startListening",
        "twisted.internet.tcp:Server": """
            =__init__ =_dataReceived _tempDataLen abortConnection connected dataBuffer disconnecting
            loseConnection
            protocol reactor write
        """,
    },
)
TLS = Foreign(
    "twisted",
    TESTED,
    {
        "twisted.protocols.tls:TLSMemoryBIOProtocol": """
            _handshakeDone loseConnection wrappedProtocol write
        """
    },
)
REACTOR = Foreign(
    "twisted",
    TESTED,
    {"twisted.internet.asyncioreactor:AsyncioSelectorReactor": "_asyncioEventloop"},
)
HTTP = Foreign(
    "twisted",
    TESTED,
    {
        "twisted.web.http:_GenericHTTPChannelProtocol": "_channel _negotiatedProtocol",
        "twisted.web.http:HTTPChannel": "_buffer _handlingRequest _transferDecoder +checkPersistence requests",
        "twisted.web.http:Request": "startedWriting",
    },
)
