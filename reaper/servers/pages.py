"""The pages docs/settings/: which settings act in one server, and what holds instead of
the others; and the tables of docs/run.md.

The rule of this module: *a page is written from the cards*. What it adds are the
sentences that say why a setting cannot act in a server of that kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..config.effects import Column
from ..config.settings import OPTIONS, ReaperConfig
from . import cards
from .readers import OUTSIDE

HTTP_ONLY = "it is a phase of HTTP, and this server is not asked for HTTP's phases"
ANSWERS = "it would change what the server writes into its responses"
WHY: Mapping[str, str] = {
    "reaper.wheel_size": "the kernel is asked instead; there is no wheel",
    "reaper.jitter": "nothing is due at one instant here",
    "reaper.reaps_per_second": "there is a bound of its own",
    "reaper.pressure": "only a program can refuse its own newcomers",
    "reaper.release_buffers": "its TLS is not asyncio's",
    "reaper.tame_gc": "a guard in another process collects nothing of the server's",
    "reaper.log_format": "the server's own logging decides",
    "reaper.log_level": "the server's own logging decides",
    "timeouts.idle": "HTTP has a limit for each phase, and WebSockets have `tunnel`",
    "timeouts.first_byte": "the server's own limit for the opening holds",
    "timeouts.handshake": "the server starts TLS itself, with its own limit",
    "timeouts.headers": HTTP_ONLY,
    "timeouts.body": HTTP_ONLY,
    "timeouts.keep_alive": HTTP_ONLY,
    "timeouts.keep_alive_margin": ANSWERS,
    "timeouts.write": "the server waits for its clients by its own pings",
    "timeouts.request": "a guard cannot tell an application that works from one that hangs",
    "timeouts.tunnel": "the echo server has `idle`",
    "timeouts.tunnel_age": "a guard cannot end a WebSocket of this server properly",
    "timeouts.half_closed": "the server decides by itself what a half-closed client gets",
    "timeouts.linger": "the server closes its sockets by itself",
    "timeouts.max_age": "the server gives no place at which a connection may end after an answer",
    "timeouts.drain": "the server stops by its own rules",
    "timeouts.drain_delay": "the server stops accepting by its own rules",
    "timeouts.drain_window": "the server closes idle connections by itself when it stops",
    "timeouts.drain_streams": "the server's streams cannot be told apart from other responses",
    "timeouts.stream_ping": ANSWERS,
    "timeouts.stream_age": "the server's streams cannot be told apart from other responses",
    "timeouts.abandoned": "the server gives no way to cancel a request",
    "timeouts.drain_idle": "the server ends its connections by itself when it stops",
    "limits.min_in_rate": "the server does not say how many bytes of a body have come",
    "limits.min_in_grace": "there is no least rate that it could belong to",
    "limits.min_out_rate": "the server does not say how many bytes a client has taken",
    "limits.min_out_grace": "there is no least rate that it could belong to",
    "limits.max_requests": "the server counts requests by itself, if at all",
    "limits.max_age_jitter": "there is no age that it could spread",
    "limits.max_header_bytes": "the server's own parser has a limit",
    "limits.max_body_bytes": "the application or the server limits bodies",
    "limits.max_connections": "the server cannot refuse a newcomer with an answer",
    "server.streams": "the server's streams cannot be told apart from other responses",
    "server.stream_retry": ANSWERS,
    "server.stream_ping_lines": ANSWERS,
    "server.behind": "only `reaper check` reads it",
}
"""By setting, why it does nothing in a server whose column does not say what holds
instead. The rest of `[server]` says where the reference server listens, and
`[attach]` is read by `reaper attach`.
"""

ELSEWHERE = "server."
"""Settings that begin so belong to the reference server, but for those in `WHY`."""


def _listed(path: str) -> bool:
    """Whether *path* belongs on the page of a server that is not ours."""
    return not path.startswith("attach.") and (not path.startswith(ELSEWHERE) or path in WHY)


def page(name: str) -> str:
    """Write the tables of docs/settings/*name*.md: for each of its servers what acts
    and what does not.
    """
    parts = []
    columns = cards.pages()[name]
    for column in columns:
        if len(columns) > 1:
            parts += [f"## {column.about}", ""]
        shown = [path for path in OPTIONS if _listed(path) or path in column.acts]
        rest = [path for path in shown if path not in column.acts and path != "server.behind"]
        parts += ["**These act.**", "", "| setting | default | what it limits | here |"]
        parts += ["|---|---|---|---|"]
        for path in shown:
            if path in column.acts:
                found = OPTIONS[path]
                default = f"`{found.kind.show(found.default)}`" if found.default != "" else "-"
                note = _sentence(column.acts[path])
                parts.append(f"| `{path}` | {default} | {found.doc} | {note} |")
        parts += ["", "**These do nothing.**", "", "| setting | why, or what holds instead |"]
        parts += ["|---|---|"]
        for path in rest:
            told = column.instead.get(path)
            why = f"Instead: {told}" if told else WHY[path]
            parts.append(f"| `{path}` | {_sentence(why)} |")
        parts.append("")
    return "\n".join(parts)


def _sentence(text: str) -> str:
    """*text* as a sentence of a table's cell; empty if it is empty."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def groups() -> tuple[tuple[Column, ...], ...]:
    """The columns of the two tables of docs/run.md: the kinds of the servers that stand
    alone, and those of the families and what is guarded from outside. Each has seven at
    most: with the setting that is as much as a reader takes in.
    """
    alone = [kind for card in cards.cards() if not card.family for kind in card.kinds]
    families = sorted(
        (card.family, kind.name, kind)
        for card in cards.cards()
        if card.family
        for kind in card.kinds
    )
    return tuple(alone), (*(kind for _, _, kind in families), OUTSIDE)


def summary() -> str:
    """Write the tables of docs/run.md: a row for each setting that acts in a server of
    others, a column for each kind of server. `partly` is explained by the server's
    page.
    """
    tables = []
    for columns in groups():
        lines = [
            f"| setting | {' | '.join(each.name for each in columns)} |",
            f"|{'---|' * (len(columns) + 1)}",
        ]
        for path in OPTIONS:
            cells = [each.cell(path) for each in columns]
            if not path.startswith("attach.") and set(cells) != {"-"}:
                lines.append(f"| {path} | {' | '.join(cells)} |")
        tables.append("\n".join([*lines, ""]))
    return "\n".join(tables)


def servers() -> str:
    """Write the other table of docs/run.md: what is done in each server."""
    lines = ["| server | tested | what is done | limits |", "|---|---|---|---|"]
    for card in cards.cards():
        first, *rest = card.limits(ReaperConfig())
        if "timeouts.idle" in card.kinds[0].acts:
            limits = f"`idle` if it is set, else `{first}`; `{' '.join(rest)}`"
        else:
            limits = f"`{' '.join([first, *rest])}`"
        lines.append(
            f"| [{card.title}](settings/{card.page}.md) | {card.needs[0].range} "
            f"| {card.done} | {limits} |"
        )
    return "\n".join([*lines, ""])
