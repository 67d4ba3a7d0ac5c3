"""One watched connection: the block of a handler, which ends with a readable reason.

The rule of this module: *it takes back exactly the cancellation it gave*. A reap
cancels the task that entered the block; the block's end uncancels it, and swallows the
`CancelledError` only if no other cancellation is under way. That is how
`asyncio.timeout` and `TaskGroup` tell theirs apart, so all of them nest in any order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from ..driver.driver import Driver
from ..driver.watched import Watched
from .transports import descriptor_of, own_socket, peer_has_shut


class Connection(Watched):
    """One watched connection, made by `AsyncioReaper.watch`; a context manager for use
    within a task.

    When the connection is reaped, the body of its `with` block is cancelled with a
    readable message, the block swallows that cancellation and no other, and `reaped`
    and `reason` tell about it afterwards. Its attributes are `Watched`'s, and
    *outlives*: whether it goes on after its block.
    """

    __slots__ = (
        "_before",
        "_entered",
        "_given",
        "_soon",
        "_task",
        "outlives",
        "transport",
        "when_cut",
    )

    def __init__(
        self,
        driver: Driver,
        uid: int,
        transport: Any,
        when_cut: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__(driver, uid)
        self.transport: Any = transport
        # Called first when it is reaped, with its transport: one function for all
        # connections of a server, for one of its own is 200 bytes.
        self.when_cut: Callable[[Any], object] | None = when_cut
        self.receiving: bool | None = (
            None if when_cut is None else True
        )  # of a protocol's, until it says `in_use`
        self._task: asyncio.Task[Any] | None = None
        self._entered = False
        self.outlives: bool = False
        self._before = 0  # cancellations of the task that were under way when it entered
        self._given = False  # whether the task has been cancelled by us
        self._soon: asyncio.Handle | None = None  # what will cancel it when it waits

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket; -1 if there is none, or it is closed."""
        return -1 if self.transport is None else descriptor_of(self.transport)

    @property
    def own_socket(self) -> Any:
        """The interpreter's, below its transport; None if there is none."""
        return None if self.transport is None else own_socket(self.transport)

    @property
    def stream(self) -> NoReturn:
        """Only a connection on trio has one. Raises AttributeError, which says what to
        do here.
        """
        # A property, for a `__getattr__` would slow each attribute of the class down.
        raise AttributeError(
            "on asyncio a connection has no stream to receive by: call connection.touch() "
            "after each read (a handler of start_server need not)"
        )

    def __enter__(self) -> Connection:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(
                "a watch is entered in a task; for a protocol use reaper.asyncio.guard or .Protocol"
            )
        if self._entered:
            raise RuntimeError(f"{self!r} was entered before; watch again for another block")
        self._entered = True
        self._task = task
        self._before = task.cancelling()
        if self.reaped:
            self._cut(self.reason or "")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        if not self.reaped:
            if not self.outlives:
                self.leave()
            return False
        if self._soon is not None:
            self._soon.cancel()
        if not self._given:
            return False
        return (
            task.uncancel() <= self._before
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        )

    def outlive(self, transport: Any, cut: Callable[[Any], object] | Callable[[], object]) -> None:
        """The connection goes on when its block ends, without a task: others have its
        streams.

        Args:
            transport: Its transport now. The caller calls `lost` when it hears of the
                end.
            cut: Called with *transport* when it is reaped: closes it. One that takes no
                argument, as in 0.4, is called with none.
        """
        self.transport = transport
        self.when_cut = _of_transport(cut)
        self.outlives = True

    def lost(self, exc: BaseException | None) -> None:
        """The transport is closed; by the peer, if there was an error or it had shut
        its side.
        """
        self.hung_up: bool = self.hung_up or exc is not None or peer_has_shut(self.transport)
        self.leave()

    def _cut(self, reason: str) -> None:
        if self.when_cut is not None:
            self.when_cut(self.transport)
        task = self._task
        if task is None:
            return  # there is no task, or the block is not entered yet: `__enter__` sees to that
        if task is asyncio.current_task(task.get_loop()):
            # The task runs this very moment. Cancelled now, it might leave the block
            # before it waits for anything, and the cancellation would hit what comes
            # after the block.
            self._soon = task.get_loop().call_soon(self._cancel, task)
        else:
            self._cancel(task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._given = task.cancel(f"reaped: {self.reason}")


def _of_transport(cut: Callable[..., object]) -> Callable[[Any], object]:
    """*cut*; if it takes no argument, a function that takes a transport and calls it
    without.
    """
    try:
        signature = inspect.signature(cut)
    except ValueError:
        return cut  # some that are written in C do not tell
    try:
        signature.bind(None)
    except TypeError:
        return lambda transport: cut()
    return cut
