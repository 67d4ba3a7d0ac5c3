"""What all pages share: the document around them, its header, tiles, cards and tables.

The rule of this module: *a page loads nothing*: no script, no font, no icon. Every text
is escaped here.

A text may come from a log, and a client has chosen what is in that: an ESC, or a
U+202E, which turns the order of what follows. So what does not print is shown as its
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escaped_html

from ..errors import printable

STYLES = ("a", "b", "d", "e", "c")
"""Classes of the colours that tell series apart, in the order in which they are used;
see `CSS`.
"""

Tile = tuple[str, str, str, str]
"""Label, value, note, and a class: `bad` or nothing."""


def escape(text: str) -> str:
    """*text* as HTML shows it; what does not print is escaped."""
    return escaped_html(printable(text))


def document(title: str, body: Iterable[str], *, refresh: int | None = None) -> str:
    """A whole page. *refresh*: seconds after which a browser loads it again; None:
    never.
    """
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1">{again}<title>{escape(title)}</title>'
        # an empty icon, so that a browser has no reason to ask a server for one
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>{"".join(body)}</main></body></html>\n'
    )


def header(verdict: str, eyebrow: str, headline: str, subtitle: str) -> str:
    """The box at the top: the *verdict* `pass` is green, `fail` red, `inconclusive`
    amber.
    """
    return (
        f'<header class="{verdict}"><p class="eyebrow">{escape(eyebrow)}</p>'
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
    """A table; *numbers*: the columns that hold figures. On a phone each cell is a
    line, after its heading.
    """
    style = [" class=n" if i in numbers else "" for i in range(len(head))]
    heads = "".join(
        f"<th{kind}>{escape(name)}</th>" for kind, name in zip(style, head, strict=True)
    )

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


CSS = """
:root{--bg:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#64707f;--rule:#e3e7ec;--a:#2563c9;--b:#0f8f6f;--c:#8b95a3;--d:#d9822b;
--e:#8a4fbf;--good:#0f7b54;--bad:#c2322d}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e6eaf0;--soft:#97a3b3;--rule:#2b3440;--a:#6ea8fe;
--b:#4fd1a5;--c:#7e8a99;--d:#f0a75a;--e:#c39bf0;--good:#15805a;--bad:#d2463f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI",Roboto,Helvetica,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}
header{color:#fff;border-radius:14px;padding:26px 32px}
header.pass{background:linear-gradient(120deg,#0b6a49,#12906a)}
header.inconclusive{background:linear-gradient(120deg,#7d4c10,#9c6014)}
header.fail{background:linear-gradient(120deg,#9f2420,#cf4a3a)}
header h1{margin:2px 0 4px;font-size:38px;line-height:1.15;letter-spacing:-.02em;text-wrap:balance}
header p{margin:0;font-size:18px;opacity:.94}
header .eyebrow{font-size:13px;letter-spacing:.12em;text-transform:uppercase;opacity:.8}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:16px;margin:18px 0}
.tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:12px}
.tile{padding:14px 18px}
.tile span,.tile small{display:block;color:var(--soft);font-size:14px}
.tile b{font-size:30px;line-height:1.25;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tile.bad b{color:var(--bad)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:18px;margin-bottom:18px}
.grid2>*,.tiles>*{min-width:0}
.card{padding:18px 22px;margin-bottom:18px}
.grid2 .card{margin:0}
.card.bad{border-color:var(--bad)}
h2{margin:0 0 2px;font-size:19px}
h3{margin:14px 0 2px;font-size:16px}
.card p{margin:0 0 10px;color:var(--soft);font-size:14.5px}
.card ul{margin:4px 0 8px;padding-left:20px;font-size:15px}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:12.5px}
svg .label{font-size:13px}
.grid{stroke:var(--rule)}
.axis{stroke:var(--soft)}
.line{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round}
.band{fill:currentColor;opacity:.16;stroke:none}
.bar,.dot{fill:currentColor}
.a{color:var(--a)}.b{color:var(--b)}.c{color:var(--c)}.d{color:var(--d)}.e{color:var(--e)}.bar.bad,.key.bad{color:var(--bad)}
.marked line{stroke:currentColor;stroke-dasharray:4 4;stroke-width:1.5}
.marked.mark{color:var(--soft)}
.marked.a{color:var(--a)}.marked.b{color:var(--b)}.marked.c{color:var(--c)}.marked.d{color:var(--d)}.marked.e{color:var(--e)}
svg .marked text{fill:currentColor;font-weight:600}
.allowed{stroke:var(--bad);stroke-dasharray:6 4;stroke-width:1.5;color:var(--bad)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:6px;font-size:14px}
.key i{display:inline-block;width:14px;height:4px;border-radius:2px;background:currentColor;margin-right:7px}
.key i{vertical-align:middle}
.key{white-space:nowrap}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14.5px}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:1px solid var(--rule)}
th,td{padding:6px 12px 6px 0;vertical-align:top}
td{border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.none{font-style:italic}
@media(max-width:520px){.grid2{grid-template-columns:1fr}
main{padding:14px 10px 32px}header{padding:18px 20px}header h1{font-size:28px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile{padding:10px 12px}.tile b{font-size:24px}.card{padding:14px}
svg text,svg .label{font-size:17px}
table,tbody,tr,td{display:block}thead{display:none}
tr{border-bottom:1px solid var(--rule);padding:6px 0}
td,tr:last-child td{border:0;padding:1px 0 1px 9.5em;text-indent:-9.5em}
td::before{content:attr(data-head);color:var(--soft);display:inline-block;min-width:9.5em;padding-right:8px}
td::before{box-sizing:border-box;text-indent:0}
td[data-head=""],tr:last-child td[data-head=""]{padding-left:0;text-indent:0}td[data-head=""]::before{content:none}
.n{text-align:left;white-space:normal}td{overflow-wrap:anywhere}}
footer{color:var(--soft);font-size:13.5px}
footer p{margin:2px 0}
""".strip()
