"""Guards connections of this very process without a touch per packet.

You give the sockets, and the kernel says which peers are silent.

One rule: *the data path is not touched*. Nothing is called per packet, and anything may
read the sockets: threads, gevent, asyncio, C. When a connection is due it is shut down;
its owner reads an end of file, and closes the socket as if the peer had hung up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from ..core.ticks import check_timeout
from .judge import Limits
from .kernel import grain
from .sockets import HasFileno, OwnSockets
from .watch import SLICE, Event, Watch


class Guard:
    """Watches sockets of this process.

    Either call `advance` when `next_wakeup` says so, from your own loop; or use it as a
    context manager, and a thread does. All methods may be called from any thread.

    Args:
        idle, first_byte, max_age, write, min_in_rate, min_in_grace, even_unanswered:
            See `Limits`; seconds, bytes per second for the rate; 0: off.
        tick: Seconds, > 0: a silent connection is shut down at most one tick late.
        jitter: 0..1: the most by which a timeout of silence is lengthened, differently
            for each connection.
        reaps_per_second: The most that are shut down per second; 0: no bound.
        on: Told every event, within `advance`, `add` or by the thread, while the
            guard's lock is held. The lock is not reentrant: *on* must not call this
            guard (it would wait for ever), and must not raise.
        clock: Seconds, monotonic.
    Raises:
        InvalidArgument: by name and value; no limit is on.
    """

    def __init__(
        self,
        *,
        idle: float = 0.0,
        first_byte: float = 0.0,
        max_age: float = 0.0,
        write: float = 0.0,
        min_in_rate: float = 0.0,
        min_in_grace: float = 5.0,
        even_unanswered: bool = False,
        tick: float = 1.0,
        jitter: float = 0.0,
        reaps_per_second: float = 0.0,
        on: Callable[[Event], object] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = Limits(
            idle,
            first_byte,
            max_age,
            write,
            min_in_rate,
            min_in_grace,
            even_unanswered,
            grain=grain(),
        )
        self._tick = check_timeout("tick", tick)
        self._clock = clock
        self._sockets = OwnSockets(clock)
        self._watch = Watch(
            self._sockets.look,
            limits,
            tick=tick,
            end=lambda ident, inode, again: self._sockets.end(ident, again),
            jitter=jitter,
            reaps_per_second=reaps_per_second,
            on=on,
        )
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    def add(self, sock: HasFileno | int) -> bytes:
        """Guard a connected TCP socket, or a descriptor.

        Its silence counts from its last byte, also if that came before this call.

        Returns:
            What `discard` takes.
        Raises:
            InvalidArgument: it is no connected TCP socket.
        Cost: about 15 us. The guard keeps no reference to the socket. You may close it
            without telling the guard, which forgets it when it would have looked at it
            next.
        """
        ident = self._sockets.ident(sock)
        (seen,) = self._sockets.look([ident])
        if seen is not None:
            with self._lock:
                self._watch.add(ident, 0, seen)
            self._changed.set()
        return ident

    def discard(self, ident: bytes) -> bool:
        """Stop guarding the connection that `add` named *ident*. True if it was
        guarded.
        """
        with self._lock:
            return self._watch.discard(ident)

    def advance(self, now: float | None = None) -> int:
        """Look at what may be due, shut down what is, and return how many were looked
        at.

        Args:
            now: Seconds on the clock; None: read it.
        Cost: 20 to 35 us per connection looked at, which happens about once per limit.
        """
        with self._lock:
            return self._watch.advance(self._clock() if now is None else now)

    def next_wakeup(self) -> float | None:
        """The instant at which `advance` should be called next; None: nothing is
        guarded.
        """
        with self._lock:
            return self._watch.next_wakeup(self._clock())

    def __len__(self) -> int:
        return len(self._watch)

    def __repr__(self) -> str:
        return f"<Guard of {len(self)} sockets, {self.closed} closed so far>"

    @property
    def closed(self) -> int:
        """Connections shut down so far."""
        return self._watch.counts.events["closed"]

    def __enter__(self) -> Guard:
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="reaper.attach", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            self._changed.clear()
            # Only after the clearing: a stop that came between the two would be waited
            # through.
            if self._stop:
                return
            if self.advance() < SLICE:
                wake = self.next_wakeup()
                self._changed.wait(None if wake is None else max(wake - self._clock(), 0.0))
