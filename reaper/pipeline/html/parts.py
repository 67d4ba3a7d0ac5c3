"""What all pages share: the document around them, its header, tiles, cards and tables.

The rule of this module: *a page loads nothing*: no script, no font, no icon. Every text is escaped here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from .style import CSS

STYLES = ("a", "b", "d", "e", "c")
"""Classes of the colours that tell series apart, in the order in which they are used; see `style`."""

Tile = tuple[str, str, str, str]
"""Label, value, note, and a class: `bad` or nothing."""


def document(title: str, body: Iterable[str], *, refresh: int | None = None) -> str:
    """The page, whole. *refresh*: seconds after which a browser loads it again; None: never."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1">{again}<title>{escape(title)}</title>'
        # an empty icon, so that a browser has no reason to ask a server for one
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>{"".join(body)}</main></body></html>\n'
    )


def header(good: bool, eyebrow: str, headline: str, subtitle: str) -> str:
    """The coloured box at the top: green when *good*."""
    return (
        f'<header class="{"pass" if good else "fail"}"><p class="eyebrow">{escape(eyebrow)}</p>'
        f"<h1>{escape(headline)}</h1><p>{escape(subtitle)}</p></header>"
    )


def tiles(shown: Iterable[Tile]) -> str:
    """A row of figures."""
    cells = "".join(
        f'<div class="tile {style}"><span>{escape(label)}</span><b>{escape(value)}</b><small>{escape(note)}</small>'
        "</div>"
        for label, value, note, style in shown
    )
    return f'<section class="tiles">{cells}</section>'


def card(title: str, text: str, content: str) -> str:
    """A box with a title, a sentence and *content* (HTML)."""
    return f'<section class="card"><h2>{escape(title)}</h2><p>{escape(text)}</p>{content}</section>'


def warning(title: str, reasons: Iterable[str], content: str = "") -> str:
    """A box in red with *reasons* and *content* (HTML)."""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    return f'<section class="card bad"><h2>{escape(title)}</h2><ul>{items}</ul>{content}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int]) -> str:
    """A table; *numbers*: the columns that hold figures. On a phone each cell is a line, after its heading."""
    style = [" class=n" if i in numbers else "" for i in range(len(head))]
    heads = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(style, head, strict=True))

    def line(row: Sequence[str]) -> str:
        return "".join(
            f'<td{kind} data-head="{escape(name)}">{escape(cell)}</td>'
            for kind, name, cell in zip(style, head, row, strict=True)
        )

    body = "".join(f"<tr>{line(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def grid(cards: Iterable[str]) -> str:
    """Cards side by side where there is room."""
    return f'<div class="grid2">{"".join(cards)}</div>'


def footer(notes: Iterable[str]) -> str:
    """The small print."""
    return "<footer>" + "".join(f"<p>{escape(note)}</p>" for note in notes) + "</footer>"


def made_by(question: str) -> str:
    """The line of the small print that says when a page was made, and by which command."""
    return f"Made {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by python -m reaper.pipeline {question}."
