"""No loop over connections holds an event loop for longer because there are more of
them: all go through `reaper.core.slices`, or a row says what bounds them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.test_layers import ROOT, tree

ROOMS = ("driver", "asyncio", "trio", "servers", "policy")
PASSES_ON = {"values", "items", "keys", "copy"}

ONE = "those of one connection"
FEW = "declared by the program, the operator, or us"
SLICE = "those of one slice"
CHECK = "those of one final check"
ENDS = "cancelled all, as the keeper of all ends"
SORTED = "sorted by turn, not told: a few tenths of a microsecond each"
BOUNDED = {
    "asyncio/at_rest.py: RESTING.names": FEW,
    "asyncio/keeper.py: tasks": ENDS,
    "trio/keeper.py: self._scopes": ENDS,
    "asyncio/reaper.py: self._probes": "the reaper stops, and with it the loop of its server",
    "asyncio/serve.py: Options.__annotations__": FEW,
    "driver/driver.py: connections": SLICE,
    "driver/driver.py: leases": CHECK,
    "driver/driver.py: probed": SLICE,
    "driver/ends.py: owners": SLICE,
    "driver/served.py: cls.LIMITED": FEW,
    "driver/sockets.py: descriptors": SLICE,
    "driver/vanished.py: asked": "`LOOKS_PER_STEP` at the most",
    "driver/vanished.py: chunk.items": "a chunk",
    "driver/vanished.py: self._known": "counted, where nothing is armed: once in an eighth of `vanished`",
    "driver/vanished.py: slot.chunks": "chunks, not connections",
    "servers/uvicorn/http.py: cls.__mro__": FEW,
    "trio/linger.py: self._waiting": "`LINGERERS` at the most",
    "trio/parking.py: self._by_fd": "it is what `slices` is given",
    "trio/reaper.py: self._lots": FEW,
    "trio/serve.py: listeners": FEW,
    "servers/aiohttp/streams.py: app.on_shutdown": FEW,
    "servers/aiohttp/streams.py: response.headers": ONE,
    "servers/gunicorn/asgi.py: self.servers": FEW,
    "servers/gunicorn/http2_asgi.py: self.session.stalled": ONE,
    "servers/gunicorn/http2_threads.py: frames.brought": ONE,
    "servers/gunicorn/http2_threads.py: self._deferred_events": ONE,
    "servers/gunicorn/http2_threads.py: self.streams": ONE,
    "servers/gunicorn/threads.py: self.keepalived_conns": "only once a guard could not be made",
    "servers/gunicorn/threads.py: self.pending_conns": "gunicorn's own look, in the thread that stops",
    "servers/http2/engine.py: self._shared": ONE,
    "servers/http2/engine.py: self.frames.brought": ONE,
    "servers/http2/engine.py: self.streams": ONE,
    "servers/http2/floods.py: windows": ONE,
    "servers/hypercorn/application.py: event.headers": ONE,
    "servers/hypercorn/http2.py: answers": ONE,
    "servers/hypercorn/http2.py: self.stream_buffers": ONE,
    "servers/pings.py: due": "`ping` rests between `TOGETHER` of them; `advance` only sorts them",
    "servers/streams.py: self._open": SORTED,
    "servers/streams.py: streams": SORTED,
    "servers/turns.py: streams": SORTED,
    "servers/uvicorn/answers.py: headers": ONE,
    "servers/uvicorn/http2.py: cycles": ONE,
    "servers/uvicorn/http2.py: self.session.streams": ONE,
    "servers/uvicorn/http2.py: session.parked": ONE,
    "servers/uvicorn/shared.py: self._uvicorn.encoded_headers": FEW,
    "servers/websockets/connection.py: self.protocol.writes": ONE,
    "policy/events.py: self._leases": ONE,
    "policy/reasons.py: row.settings": FEW,
}
"""Loops that need no slices: the file, and what they go through; why not."""


def loops(code: ast.Module) -> Iterator[str]:
    """What the loops of *code* go through that may be a crowd: an attribute, what a
    function has of one, or a parameter that is a collection.
    """
    yield from _in(code, set())


def _in(scope: ast.AST, crowds: set[str]) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in(node, {*crowds, *_given(node), *_taken(node)})
            continue
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            found = _unwrapped(node.iter)
            if isinstance(found, ast.Attribute) or (
                isinstance(found, ast.Name) and found.id in crowds
            ):
                yield ast.unparse(found)
        yield from _in(node, crowds)


def _given(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters that are collections."""
    marks = ("list[", "Iterable[", "Iterator[", "Sequence[", "Collection[", "set[")
    for each in (*function.args.args, *function.args.kwonlyargs):
        words = ast.unparse(each.annotation) if each.annotation is not None else ""
        if words.startswith(marks) and "str]" not in words and "bytes" not in words:
            yield each.arg


def _taken(function: ast.AST) -> Iterator[str]:
    """The names that stand for an attribute, or a copy of one."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(_unwrapped(value), ast.Attribute):
                    yield name.id


def _unwrapped(node: ast.expr) -> ast.expr:
    """What `list(...)`, `enumerate(...)`, `....values()` and their like go through."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in PASSES_ON:
            node = node.func.value
        elif isinstance(node.func, ast.Name) and node.func.id in WRAPS and node.args:
            node = node.args[0]
        else:
            break
    return node


WRAPS = {"list", "tuple", "set", "sorted", "iter", "enumerate", "reversed"}

DECLARE = {"cards.py", "changes.py", "guest.py", "pages.py"}
"""Files that only say what servers there are, and change them before they listen."""

SOURCES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / "reaper" / room).rglob("*.py"))
    if path.name not in DECLARE
]


def test_a_loop_goes_through_slices_and_a_row_names_one() -> None:
    found = {
        f"{path.relative_to(ROOT / 'reaper')}: {each}"
        for path in SOURCES
        for each in loops(tree(path))
    }
    assert found == BOUNDED.keys()


@pytest.mark.parametrize(
    ("code", "through"),
    [
        ("for one in list(self._open.values()): one.end()", ["self._open"]),
        ("[one.end() for one in self._open]", ["self._open"]),
        ("def f(self):\n old, self._idle = self._idle, []\n for one in old: pass", ["old"]),
        ("def f(self):\n every = list(self._idle)\n for one in every: pass", ["every"]),
        ("def f(told: list[Stream]):\n for one in told: pass", ["told"]),
        ("def f(self):\n walk(soon, self._idle, rest)", []),
        ("def f(self):\n for some in slices(self._idle):\n  for one in some: pass", []),
    ],
)
def test_a_loop_is_seen_in_whatever_form(code: str, through: list[str]) -> None:
    assert list(loops(ast.parse(code))) == through
