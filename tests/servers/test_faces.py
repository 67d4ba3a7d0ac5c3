"""What stands for the transport of a server that has none of asyncio's, after its
end.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from reaper.servers.polled import SocketFace
from reaper.servers.tornado.phases import TornadoFace
from reaper.servers.twisted.phases import TwistedFace


class Whose:
    """The server's object."""


@pytest.mark.parametrize("face", [TwistedFace, TornadoFace])
def test_a_face_whose_connection_is_freed_is_closing(face: type[SocketFace]) -> None:
    whose = Whose()
    with socket.socket() as sock:
        made: Any = face(whose, sock)
        del whose
        assert made.is_closing()
        assert made.get_write_buffer_size() == 0
        made.close()
        made.abort()
