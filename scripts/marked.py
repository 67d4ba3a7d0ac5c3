"""What stands in a page between two marks, written by a script."""

from __future__ import annotations

from pathlib import Path


def write(page: Path, begin: str, end: str, text: str) -> None:
    """Put *text* between the marks *begin* and *end* of *page*, with a blank line on
    either side.

    Raises:
        SystemExit: the page lacks one of them.
    """
    before, _, after = _parts(page, begin, end)
    inner = text.strip("\n")
    page.write_text(f"{before}{begin}\n\n{inner}\n\n{end}{after}", encoding="utf-8")


def show(page: Path, begin: str, end: str, text: str, *, document: bool) -> None:
    """Print *text*; with *document*, `write` it into *page* instead."""
    if document:
        write(page, begin, end, text)
    else:
        print(text)


def read(page: Path, begin: str, end: str) -> str:
    """What stands between the marks *begin* and *end* of *page*.

    Raises:
        SystemExit: the page lacks one of them.
    """
    return _parts(page, begin, end)[1].strip("\n")


def _parts(page: Path, begin: str, end: str) -> tuple[str, str, str]:
    before, begins, rest = page.read_text(encoding="utf-8").partition(begin)
    inner, ends, after = rest.partition(end)
    for found, mark in ((begins, begin), (ends, end)):
        if not found:
            raise SystemExit(f"{page} lacks the mark {mark}")
    return before, inner, after
