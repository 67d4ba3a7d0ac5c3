"""Requests whose client is gone: their handlers are cancelled `timeouts.abandoned`
later.

The rule of this module: *a client is gone when its answer cannot reach it any more, and
nothing less says so*. How that is known:

- The server has lost the connection: it was reset; its client's machine has vanished
  and the kernel has given up (`timeouts.vanished`); we closed it; or a stream of HTTP/2
  was reset. `lost` is told.
- A FIN alone does not say it. A client that leaves sends one, and so does a client that
  has asked all and waits for its answer. Both look alike to the kernel until something
  is sent: then the machine of the client that left answers with a reset, and the other
  one with an acknowledgement. So where the connection stays open for the answer
  (`hung_up`) we ask: HTTP/1.1 allows any number of `100 Continue` before a response,
  and every client drops them. One is sent, only while nothing of the response was sent,
  and the kernel says soon what came back. A client that waits is asked again every
  `abandoned`: it may leave later, and sends no second FIN. Where this question cannot
  be put (HTTP/1.0, a response that has begun), the next bytes of the response are the
  question.
- A connection with TLS cannot stay open, and no client that has half-closed waits for
  the rest of an event stream. There a FIN is the end: `lost`.

A dead connection is dropped as soon as that is known, so that the server tells the
application of it (`http.disconnect`). The handler has until its time is over to end by
itself.

A handler whose response is complete is never cancelled: what it does afterwards, a
background task for instance, is not done for the client. Nor is a request whose route
says so: `scope["extensions"]["reaper"]["abandoned"] = False`, at any time before it
would be cancelled.

A handler is cancelled once. If it goes on nevertheless, it may.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from ..asyncio import transports
from ..config.settings import ReaperConfig
from ..driver.driver import Call, Driver
from ..driver.sockets import borrowed, is_over, queued
from .streams import STREAM, App, Blocked, Exchange, Streams, is_never_blocked

SOON = 0.05
"""Seconds after the question until the kernel is first asked what came back; then twice
as long.
"""

PAUSE = 1.0
"""Seconds after which a client that waits is asked again, at least."""

QUESTION = b"HTTP/1.1 100 Continue\r\n\r\n"
"""A client that waits drops it. If the client has left, its kernel answers with a
reset.
"""

MOST_ROUTES = 1000
"""Routes whose usual time is remembered; beyond that the oldest is forgotten."""

Key = Callable[[Any, Any], object]
"""Returns what the server knows a request by, from its `receive` and `send`; None: the
server does not know it.
"""


class Link(NamedTuple):
    """The connection of a request whose client sends no more.

    It is no `Wire`: uvicorn's protocols have none, and whether all that was answered is
    written is known to each server by something else.
    """

    descriptor: Callable[[], int]
    """Returns the descriptor of its socket; -1: it is closed."""
    silent: Callable[[], bool]
    """Whether all of this response and of earlier ones was written."""
    cut: Callable[[], object]
    """Drops the connection, which is known to be dead."""


class Underway(Protocol):
    """A request that is worked on.

    Attributes:
        began: When, by the driver's clock.
        settled: Whether its response is complete, or nothing more will be done about
            it.
        left: Since when its client is known to be gone, by the driver's clock. None if
            it is there.
        call: The call that cancels it, or asks again, once its client has left.
    """

    began: float
    settled: bool
    left: float | None
    call: Call | None

    def route(self) -> str:
        """Method and path, as the log is to name it."""

    def may_be_asked(self) -> bool:
        """Whether its client knows `100 Continue`, and the response has not begun."""

    def may_be_cancelled(self) -> bool:
        """Whether its route allows that."""

    def give_up(self) -> None:
        """Cancel its handler."""


class Abandoned:
    """Cancels the requests of one server whose clients are gone.

    Args:
        driver: Its clock and its books are used; `timeouts.abandoned` of its config is
            the time in seconds.
        log: Gets a line at INFO for each request that is cancelled. None: the log of
            the closes.
    """

    def __init__(self, driver: Driver, log: logging.Logger | None = None) -> None:
        self.seconds: float = driver.config.timeouts.abandoned
        self._soon = min(SOON, self.seconds / 2)
        self._driver = driver
        self._log = log
        self._usual: dict[str, tuple[int, float]] = {}  # by route: how many were answered, seconds

    def begin(self, request: Underway) -> None:
        """*request* is about to be worked on."""
        request.began = self._driver.now()
        request.settled = False
        request.left = request.call = None

    def is_answered(self, request: Underway) -> None:
        """The response of *request* is complete."""
        if request.settled:
            return
        request.settled = True
        self.over(request)
        route = request.route()
        count, total = self._usual.pop(route, (0, 0.0))
        if len(self._usual) >= MOST_ROUTES:
            del self._usual[next(iter(self._usual))]
        self._usual[route] = count + 1, total + self._driver.now() - request.began

    def over(self, request: Underway) -> None:
        """The handler of *request* has returned, or has nothing more to do for its
        client.
        """
        if request.call is not None:
            request.call.cancel()
            request.call = None

    def lost(self, request: Underway) -> None:
        """The connection of *request* is lost: cancel it when its time is over. Does
        nothing if that is known.
        """
        if request.left is None and not request.settled:
            self._is_gone(request, self._driver.now())

    def hung_up(self, request: Underway, link: Link) -> None:
        """The client of *request* sends no more, and its connection stays open for the
        answer.
        """
        if not request.settled and request.call is None:
            self._ask(request, link)

    def _ask(self, request: Underway, link: Link) -> None:
        now = self._driver.now()
        if is_over(link.descriptor()):
            self._is_gone(request, now)
            link.cut()
        elif request.may_be_asked() and link.silent() and _send(link.descriptor(), QUESTION):
            soon = self._soon
            look = partial(self._look, request, link, now, soon)
            request.call = self._driver.after(soon, look)
        else:
            self._ask_again(request, link)

    def _ask_again(self, request: Underway, link: Link) -> None:
        pause = max(self.seconds, PAUSE)
        request.call = self._driver.after(pause, partial(self._ask, request, link))

    def _look(self, request: Underway, link: Link, since: float, waited: float) -> None:
        """Ask the kernel what came back. The client was asked at the instant *since*,
        and the last look was *waited* seconds ago.
        """
        descriptor = link.descriptor()
        if is_over(descriptor):
            self._is_gone(request, since)
            link.cut()
        elif not queued(descriptor):
            self._ask_again(request, link)  # it waits for its answer
        else:
            look = partial(self._look, request, link, since, 2 * waited)
            request.call = self._driver.after(2 * waited, look)

    def _is_gone(self, request: Underway, since: float) -> None:
        """The client of *request* is gone *since* that instant."""
        self.over(request)
        request.left = since
        # The application is told now, and has a moment to end by itself.
        left = max(since + self.seconds - self._driver.now(), self._soon)
        request.call = self._driver.after(left, partial(self._cancel, request, since))

    def _cancel(self, request: Underway, since: float) -> None:
        request.call = None
        request.settled = True
        if not request.may_be_cancelled():
            return
        books, now = self._driver.books, self._driver.now()
        books.abandoned += 1
        route, ran = request.route(), now - request.began
        count, total = self._usual.get(route, (0, 0.0))
        saved = max(total / count - ran, 0.0) if count else None
        (self._log or books.log).info(
            "%s - cancelled: its client has been gone for %.1f s, it had run for %.1f s; %s",
            route,
            now - since,
            ran,
            "what that saves is unknown: its route has not answered yet"
            if saved is None
            else f"answers took {total / count:.1f} s ({count} of them): about {saved:.1f} s saved",
            extra={"route": route, "ran": ran, "saved": saved},
        )
        request.give_up()


def _send(descriptor: int, data: bytes) -> bool:
    """Write *data* to a socket that nobody else is writing to. Returns whether that was
    done.
    """
    try:
        with borrowed(descriptor) as connected:
            return connected.send(data) == len(data)
    except (OSError, ValueError):
        return False


class Request(Exchange):
    """One request of an ASGI application on asyncio, which can be cancelled.

    Args:
        requests: Of the server.
        key: What the server knows it by.
        scope, receive, send: As an ASGI application is called with them.
    """

    __slots__ = ("_begun", "_key", "_requests", "began", "call", "left", "settled")

    def __init__(
        self, requests: Requests, key: object, scope: Any, receive: Any, send: Any
    ) -> None:
        super().__init__(requests, scope, receive, send)
        self._requests = requests
        self._key = key
        self._begun = False  # something of the response was sent
        self.began: float
        self.settled: bool
        self.left: float | None
        self.call: Call | None
        requests.enter(key, self)

    async def run(self) -> Any:
        """As `Exchange.run`."""
        try:
            result = await super().run()
            if self._cancelled:
                self._was_caught()
            return result
        finally:
            self._requests.leave(self._key, self)

    def _was_caught(self) -> None:
        """The application has caught the cancellation. Do not cancel its task again."""
        if (task := asyncio.current_task()) is not None:
            task.uncancel()

    def send(self, message: Any) -> Any:
        """As `Exchange.send`."""
        self._begun = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._requests.abandoned.is_answered(self)
        return super().send(message)

    def may_be_asked(self) -> bool:
        return not self._begun and self._scope["http_version"] == "1.1"

    def is_stream(self) -> bool:
        """Whether its response has begun, and is a stream."""
        return self._state >= STREAM

    def may_be_cancelled(self) -> bool:
        return self._said.get("abandoned") is not False

    def give_up(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()


class Requests(Streams):
    """As `Streams`, and its requests are cancelled when their clients are gone.

    Args:
        driver: Of the reaper that watches the server's connections.
        key: What the server knows a request by, when it says that its client has gone.
        over: Whether the client of that key has left already: a request may begin after
            that.
        log: As in `Abandoned`.
        app, config, talks, blocked, eager: As in `Streams`.
    Attributes:
        abandoned: Cancels those whose clients are gone.
    """

    KIND: ClassVar[type[Request]] = Request

    def __init__(
        self,
        app: App,
        config: ReaperConfig,
        driver: Driver,
        key: Key,
        over: Callable[[Any], bool],
        *,
        talks: bool = False,
        log: logging.Logger | None = None,
        blocked: Blocked = is_never_blocked,
        eager: bool = True,
    ) -> None:
        super().__init__(app, config, driver, talks=talks, blocked=blocked, eager=eager)
        self.abandoned: Abandoned = Abandoned(driver, log)
        self._key = key
        self._is_over = over
        self._underway: dict[object, Request] = {}
        # FINs that came before the request began, and whether others may follow that
        # request.
        self._early: dict[object, tuple[Link, bool]] = {}

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["type"] == "http":
            return self.KIND(self, self._key(receive, send), scope, receive, send).run()
        return super().__call__(scope, receive, send)

    def enter(self, key: object, request: Request) -> None:
        """*request* begins; the server knows it by *key*, or not at all if that is
        None.
        """
        self.abandoned.begin(request)
        if key is None:
            return
        self._underway[key] = request
        early = self._early.get(key) if self._early else None
        if early is not None:
            link, stays = early
            if not stays:
                del self._early[key]
            self.abandoned.hung_up(request, link)
        elif self._is_over(key):
            self.abandoned.lost(request)

    def lost(self, key: object) -> bool:
        """The connection of the request that the server knows by *key* is lost. Returns
        whether there is one that was not settled yet.
        """
        self._early.pop(key, None)
        request = self._underway.get(key)
        if request is None or request.settled:
            return False
        self.abandoned.lost(request)
        return True

    def hung_up(self, key: object, link: Link, *, stays: bool = False) -> bool:
        """The client of that request sends no more, and the connection can stay open.
        Returns whether it should: the request has yet to begin, or is not settled and
        no stream.

        Args:
            stays: Whether *key* names the connection, and a request on it still has to
                be answered. Each request that begins until `lost` is that client's.
        """
        request = self._underway.get(key)
        if request is None or (stays and request.settled):
            self._early[key] = link, stays
            return True
        if request.settled or request.is_stream():
            return False
        if stays:
            self._early[key] = link, stays
        self.abandoned.hung_up(request, link)
        return True

    def leave(self, key: object, request: Request) -> None:
        """The handler of *request* has returned."""
        self.abandoned.over(request)
        if self._underway.get(key) is request:
            del self._underway[key]


def streams_of(
    app: App,
    config: ReaperConfig,
    driver: Driver,
    key: Key,
    over: Callable[[Any], bool],
    *,
    talks: bool = False,
    log: logging.Logger | None = None,
    blocked: Blocked = is_never_blocked,
    eager: bool = True,
) -> Streams:
    """What stands around *app*: `Requests` where `timeouts.abandoned` is on, otherwise
    `Streams`.
    """
    if config.timeouts.abandoned:
        return Requests(
            app, config, driver, key, over, talks=talks, log=log, blocked=blocked, eager=eager
        )
    return Streams(app, config, driver, talks=talks, blocked=blocked, eager=eager)


def link_of(transport: Any) -> Link:
    """The link of asyncio's *transport*."""
    return Link(
        partial(transports.descriptor_of, transport),
        lambda: not transports.buffered(transport),
        transport.abort,
    )
