"""The cells that are known to be worse than they should be, each with its reason.

One rule: *a row is true, or it goes*. A run fails for a red cell that no row names, and
for a row that names a column in which not one of its cells is red any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .trial import Cell

HOLDS = "holds no object of a thousand that came and went"
"""The row of the table that is no kind of clients."""


@dataclass(frozen=True)
class Named:
    """Some cells, and why they are as they are.

    Attributes:
        columns, kinds: All cells of these.
        told: Whether only what was not said is meant: each is ended in time, without
            a 408.
        late: Whether they are ended, but late, which a coarse run does not judge.
        sometimes: Whether they may be green as well: it is a race.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    why: str
    told: bool = False
    late: bool = False
    sometimes: bool = False

    def names(self, cell: Cell) -> bool:
        """Whether it names what is wrong with *cell*."""
        return cell.kind.name in self.kinds and (not self.told or not cell.wrong)


OUTSIDE = (
    *("hypercorn", "gunicorn, asgi", "gunicorn, threads"),
    *("aiohttp, `reaper run`", "aiohttp, `run_app`", "sanic", "tornado", "daphne"),
)
"""The guests whose guard asks the server which phase of HTTP it is in."""

NAMED: tuple[Named, ...] = (
    Named(
        OUTSIDE,
        ("drips its second head, which never ends",),
        "it begins before the guard has found the connection at rest, and the kernel says when the last"
        " byte came and how many, not when the first of those that drip; to note that, each answer would"
        " have to be looked at: `headers` ends the client up to the shortest limit late",
        late=True,
    ),
    Named(
        ("aiohttp, `reaper run`", "aiohttp, `run_app`"),
        ("sends half of its second head",),
        "it begins within the 10 ms in which the kernel does not tell what came from what was sent, and"
        " aiohttp shows nothing of a part of a head: `keep_alive` ends the client then",
        sometimes=True,
    ),
    Named(
        ("hypercorn, HTTP/2", "hypercorn, trio, HTTP/2"),
        ("HTTP/2: sends half a preface",),
        "in clear text hypercorn reads a head of HTTP/1.1 until the preface is whole: `headers` ends"
        " the client, from its first byte on, unless a look comes before",
        sometimes=True,
    ),
    Named(
        ("tornado, TLS",),
        ("TLS: sends half of the first bytes of its handshake",),
        "nothing of tornado's says that a handshake is over: `first_byte` stands for `handshake`, as"
        " its page of settings says",
    ),
    Named(
        (
            *(
                "uvicorn, httptools, TLS",
                "uvicorn, h11, TLS",
                "hypercorn, TLS",
                "gunicorn, asgi, TLS",
            ),
            *("aiohttp, `reaper run`, TLS", "aiohttp, `run_app`, TLS", "sanic, TLS"),
        ),
        ("TLS: half-closes after its request",),
        "asyncio's TLS ends a connection at its client's goodbye: whether the answer is out before that"
        " is chance, guarded or not (30 times with Sanic: each 10)",
        sometimes=True,
    ),
    Named(
        ("daphne",),
        ("half-closes after its request",),
        "Twisted ends a connection at its client's end: whether the answer is out before that is chance,"
        " guarded or not (of 2,000 clients each stock answered 407, guarded 389)",
        sometimes=True,
    ),
)


def of(column: str) -> list[Named]:
    """The rows that name *column*."""
    return [row for row in NAMED if column in row.columns]


def known(column: str, cell: Cell, *, coarse: bool = False) -> bool:
    """Whether a row names what is wrong with *cell*, in *column*."""
    rows = [row for row in of(column) if not (coarse and row.late)]
    return bool(cell.wrong or cell.lacks) and any(row.names(cell) for row in rows)


def faults(
    column: str,
    cells: Mapping[str, Cell],
    holds: Iterable[str] | None = None,
    *,
    coarse: bool = False,
) -> list[str]:
    """What a run of *column* found that no row names, and the rows that are not true
    any more.

    Args:
        holds: The types of which the guarded server holds objects; None: not counted.
        coarse: Whether the run did not judge how late the ends of dead clients came.
    """
    rows = [row for row in of(column) if not (coarse and row.late)]
    red = [cell for cell in cells.values() if cell.wrong or cell.lacks]
    found = [
        f"{column}: {cell.kind.name}: {cell.wrong or cell.lacks}"
        for cell in red
        if not any(row.names(cell) for row in rows)
    ]
    held = list(holds or ())
    if held and not any(HOLDS in row.kinds for row in rows):
        found.append(f"{column}: holds {', '.join(held[:8])}")
    for row in rows:
        here = {
            name for name in row.kinds if name in cells or (name == HOLDS and holds is not None)
        }
        still = any(row.names(cell) for cell in red) or (HOLDS in here and held)
        if here and not still and not row.sometimes:
            found.append(f"{column}: is mended, so its row goes: {row.why}")
    return found
