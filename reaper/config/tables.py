"""The settings as a table for people: in Markdown for the documentation, between two markers.

One rule: *documentation that can drift is generated*. `python -m reaper table FILE...` rewrites what is between the
markers; a test compares.
"""

from __future__ import annotations

from .settings import OPTIONS, SECTIONS

BEGIN = "<!-- settings: written by `python -m reaper table`, do not edit -->"
END = "<!-- end of settings -->"


def markdown(sections: tuple[str, ...] = SECTIONS) -> str:
    """One table per section: name, default, meaning, precedent; before it, what a reload reaches."""
    parts = []
    for section in sections:
        settings = [found for found in OPTIONS.values() if found.section == section]
        late = [f"`{found.key}`" for found in settings if not found.live]
        live = [f"`{found.key}`" for found in settings if found.live]
        reload, others = ("live", late) if len(late) < len(live) else ("changes need a restart", live)
        reload += f", but for {', '.join(others)}" if others else ""
        rows = [
            f"**`[{section}]`**: {reload}",
            "",
            "| setting | default | what it limits | precedent |",
            "|---|---|---|---|",
        ]
        for found in settings:
            default = f"`{found.kind.show(found.default)}`" if found.default != "" else "none"
            rows.append(f"| `{found.key}` | {default} | {found.doc} | {found.precedent} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def rewrite(text: str) -> str:
    """*text* with what is between the markers replaced by the table.

    Raises:
        ValueError: the markers are not there, or not in order.
    """
    start, end = text.find(BEGIN) + len(BEGIN), text.find(END)
    if missing := [marker for marker in (BEGIN, END) if marker not in text]:
        raise ValueError(f"no line {missing[0]}")
    if end < start:
        raise ValueError(f"{END} comes before {BEGIN}")
    return f"{text[:start]}\n\n{markdown()}\n{text[end:]}"
