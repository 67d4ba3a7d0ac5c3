"""The listening sockets of one port: opened before the first worker, kept while workers
come and go, then handed on.

One rule: *a connection that the kernel has completed is accepted*. Closing a listening
socket resets what waits in its backlog, so a socket outlives its worker: the supervisor
holds it for the next one. A server that is started on the same port with `--share-port`
is given copies of the very sockets, and opens none of its own. The backlog is emptied
before the last copy is closed, and first the kernel is told to let no one else in
(`turn_away`).

Who has the last copy? A server cannot see who else holds its sockets, so every server
that does holds a *claim*: a shared lock (flock) on one file that has no name and goes
with the sockets from server to server. The kernel gives the claim up when the process
ends, however it ends. A server that leaves gives up its own; if it can then have the
lock for itself alone, nobody else is left (`is_last`). So the last server turns
newcomers away also if it once took the sockets over, and a server whose successor died
is the last again. A service manager holds no claim, but keeps its sockets open: for
those nobody is ever the last.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import ssl
import stat
import struct
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from reaper.config import ReaperConfig
from reaper.config.options import host_and_port
from reaper.driver.sockets import credentials, listen_as, names_of
from reaper.errors import ConfigError, printable
from reaper.trio.accepting import ACCEPTS_PER_PASS, accept_burst

BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn

IN_USE_PATIENCE = 1.0
"""Seconds for which a port in use is tried again: a server that is stopping frees it
soon.
"""

FIRST_ACTIVATED = 3
"""The first descriptor that a service manager hands over, see sd_listen_fds(3)."""

SO_ATTACH_FILTER = 26  # asm-generic/socket.h

MOST_SOCKETS = 250
"""Most sockets on one port: one message carries all to a successor (SCM_MAX_FD is
253).
"""

Admit = Callable[[socket.socket], object]
"""Serves an accepted connection from now on."""


class Listening:
    """The listening sockets of one port.

    Attributes:
        host, port: The address on which they listen; of a Unix socket its path, and 0.
        sockets: The listening sockets.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        counter: socket.socket | None,
        claim: int | None = None,
    ) -> None:
        self.sockets = list(sockets)
        address = sockets[0].getsockname()
        # A service manager may have opened a Unix socket, which has a path and no port.
        self.host, self.port = (
            address[:2] if isinstance(address, tuple) else (printable(os.fsdecode(address)), 0)
        )
        self._counter = counter  # where successors ask for copies
        self._claim = claim  # a descriptor; None: others hold the sockets without a claim

    @classmethod
    def open(cls, host: str, port: int, count: int, *, share: bool = False) -> Listening:
        """Open *count* sockets on one port, `MOST_SOCKETS` at most; the kernel spreads
        connections.

        With port 0 the kernel chooses one. With *share*, and if a server of this user
        listens there already, the result holds copies of that server's sockets, however
        many it has.

        Raises:
            OSError: the address cannot be had; EADDRINUSE also where a server of ours
                has it and *share* is False.
        """
        if share and port:
            inherited = _ask_for_copies(host, port)
            if inherited is not None:
                return inherited
        sockets = _opened(host, port, min(count, MOST_SOCKETS), share=share)
        counter = listen_as(_family(*sockets[0].getsockname()[:2]))
        file = os.memfd_create("reaper-example")
        try:
            return cls(sockets, counter, _claim(file))
        finally:
            os.close(file)

    @classmethod
    def activated(cls, environ: Mapping[str, str] = os.environ) -> Listening | None:
        """The sockets that a service manager opened for this process (LISTEN_FDS), or
        None.
        """
        if (
            environ.get("LISTEN_PID") != str(os.getpid())
            or not environ.get("LISTEN_FDS", "").isdecimal()
        ):
            return None
        descriptors = range(FIRST_ACTIVATED, FIRST_ACTIVATED + int(environ["LISTEN_FDS"]))
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return cls(sockets, None) if sockets else None

    def share_of(self, worker: int, workers: int) -> list[socket.socket]:
        """The sockets that worker number *worker* of *workers* accepts from.

        Each socket has a worker, and each worker has a socket.
        """
        return self.sockets[worker::workers] or [self.sockets[worker % len(self.sockets)]]

    def fileno(self) -> int:
        """The descriptor that becomes readable when a successor asks for copies; -1:
        none.
        """
        return -1 if self._counter is None else self._counter.fileno()

    def answer(self) -> None:
        """Give copies of the sockets to a successor, if one has asked. Does not wait
        for one.
        """
        if self._counter is None:
            return
        with suppress(OSError):
            asking, _ = self._counter.accept()
            with asking:
                asking.settimeout(1.0)
                if credentials(asking).user in (0, os.getuid()):
                    copies = [each.fileno() for each in (self._counter, *self.sockets)]
                    # The claim of the successor is made here, before it has the
                    # sockets. A server of an older version sent none, and takes none
                    # from us.
                    theirs = None if self._claim is None else _claim(self._claim)
                    if theirs is not None:
                        copies.append(theirs)
                    try:
                        socket.send_fds(asking, [b"!"], copies)
                    finally:
                        if theirs is not None:
                            os.close(theirs)

    def is_last(self) -> bool:
        """Give up this server's claim. Returns whether no other server accepts from the
        sockets.
        """
        if self._claim is None:
            return False
        fcntl.flock(self._claim, fcntl.LOCK_UN)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._claim, fcntl.LOCK_UN)
        return True

    def close(self, *, but: Sequence[socket.socket] = ()) -> None:
        """Close this process's copies of all sockets except *but*. May be called
        again.
        """
        if self._counter is not None:
            self._counter.close()
            self._counter = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None
        for each in self.sockets:
            if each not in but:
                each.close()


def beside(address: str, *, share: bool = False) -> socket.socket:
    """Open the operator's listening socket on *address*, HOST:PORT: one that all
    workers share.

    Raises:
        OSError: the address cannot be had; EADDRINUSE also where a server of ours has
            it and *share* is False.
        ValueError: *address* is no address.
    """
    (made,) = _opened(*host_and_port(address), 1, share=share)
    return made


def tls_context(config: ReaperConfig) -> ssl.SSLContext | None:
    """Make the TLS context that *config* asks for; None: it asks for none.

    Raises:
        ConfigError: certificate or key cannot be read or do not fit together.
    """
    cert, key = config.server.tls_cert, config.server.tls_key
    if not cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"server.tls_cert, server.tls_key: {cert!r}, {key!r}: cannot be used: {error}"
        ) from error
    return context


def turn_away(listening: socket.socket) -> bool:
    """Have the kernel drop every SYN that comes; handshakes that have begun are
    completed. Returns whether the kernel does: some let root alone filter a TCP socket.

    A client whose SYN is dropped sends it again a second later, and reaches whoever
    listens then. Without this it would be reset, with a request under way, as
    *listening* is closed. The filter holds for every copy of the socket: do not attach
    it while another server accepts from one.
    """
    # A program for the kernel's packet filter (classic BPF), a row per instruction:
    # operation, jump if true, jump if false, operand. "Keep" and "drop" return how many
    # bytes to keep.
    load_tcp_flags = (0x30, 0, 0, 13)
    skip_one_unless_syn = (0x45, 0, 1, 0x02)
    drop = (0x06, 0, 0, 0)
    keep = (0x06, 0, 0, 0xFFFFFFFF)
    program = (load_tcp_flags, skip_one_unless_syn, drop, keep)
    steps = array("B", b"".join(struct.pack("=HBBI", *step) for step in program))
    with suppress(OSError):  # without the filter the socket is closed as it is
        listening.setsockopt(
            socket.SOL_SOCKET,
            SO_ATTACH_FILTER,
            struct.pack("HP", len(program), steps.buffer_info()[0]),
        )
        return True
    return False


def empty(listening: socket.socket, admit: Admit) -> None:
    """Accept all connections that wait in the backlog, close *listening*, and only then
    admit them.

    To admit one takes time, in which more would come. A connection that the kernel
    completes between the last accept and the close is reset if this was the last copy:
    `turn_away` prevents that.
    """
    waiting: list[socket.socket] = []
    with listening:
        listening.setblocking(False)
        for _ in range(2 * BACKLOG // ACCEPTS_PER_PASS):
            accepted, errors, _ = accept_burst(listening)
            waiting += accepted
            if len(accepted) + len(errors) < ACCEPTS_PER_PASS:
                break  # nothing waits, or there is nothing to accept it with
    for connected in waiting:
        admit(connected)


def _opened(host: str, port: int, count: int, *, share: bool) -> list[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port and not share:
        _refuse_if_in_use(family, host, port)
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            dual = family == socket.AF_INET6
            made = socket.create_server(
                (host, port), family=family, backlog=BACKLOG, reuse_port=True, dualstack_ipv6=dual
            )
            sockets.append(made)
            port = made.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _refuse_if_in_use(family: int, host: str, port: int) -> None:
    """Raise EADDRINUSE if another socket listens there, also one of a server that would
    share the port.
    """
    until = time.monotonic() + IN_USE_PATIENCE
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                alone.bind((host, port))
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                    raise
        time.sleep(0.02)


def _claim(shared: int) -> int | None:
    """A claim on the file of the descriptor *shared*: a descriptor; None: there is no
    /proc here.

    A lock belongs to an open file, not to a descriptor or a process: so the file is
    opened anew.
    """
    try:
        made = os.open(f"/proc/self/fd/{shared}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    fcntl.flock(made, fcntl.LOCK_SH)
    return made


def _family(host: str, port: int) -> str:
    return f"reaper-example/{host}:{port}/"


def _ask_for_copies(host: str, port: int) -> Listening | None:
    """Copies of the sockets of this user's server that listens there; None: there is
    none.
    """
    with suppress(OSError):
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ][4]
        for name in names_of(_family(str(address[0]), port)):
            with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(5.0)
                asking.connect(f"\0{name}")
                if (
                    credentials(asking).user != os.getuid()
                ):  # any process may take a name of this kind
                    continue
                _, descriptors, _, _ = socket.recv_fds(asking, 1, MOST_SOCKETS + 2)
                claim = None
                if descriptors and not stat.S_ISSOCK(os.fstat(descriptors[-1]).st_mode):
                    claim = descriptors.pop()
                copies = [socket.socket(fileno=descriptor) for descriptor in descriptors]
                if len(copies) > 1:
                    return Listening(copies[1:], copies[0], claim)
    return None
