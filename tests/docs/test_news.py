"""Claims about `news/`: what a reader of the changelog is told, and in which form."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FRAGMENTS = sorted(
    path for path in (ROOT / "news").iterdir() if path.name not in ("README.md", "template.jinja")
)
KINDS = {
    kind["directory"]
    for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
}
AREAS = re.findall(r'"([a-z0-9]+)": "', (ROOT / "news" / "template.jinja").read_text())
MOST = 25
"""Words of a fragment, without the page in brackets at its end."""
LINK = re.compile(r"\[[^]]*\]\(([^)#]+)(?:#[^)]*)?\)")


def test_a_fragment_is_one_short_sentence_that_links_a_page() -> None:
    wrong = {path.name: why for path in FRAGMENTS if (why := _wrong_with(path))}
    assert not wrong


def _wrong_with(path: Path) -> str:
    """What is wrong with the fragment at *path*; empty if nothing is."""
    text = path.read_text().strip()
    pages = LINK.findall(text)
    said = re.sub(r" \(\[[^]]*\]\([^)]*\)\)\.$", ".", text)
    words = len(re.sub(r"\]\([^)]*\)", "]", said).split())
    if not re.fullmatch(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md", path.name):
        return "its name is not NAME.KIND.md"
    if path.name.split("-")[0] not in AREAS:
        return "its name begins with no area of news/template.jinja"
    if "\n" in text or not text.endswith("."):
        return "it is not one sentence, in one line"
    if missing := [page for page in pages if not (ROOT / page).is_file()]:
        return f"there is no {', '.join(missing)}"
    if not pages:
        return "it links no page"
    return f"it has {words} words" if words > MOST else ""


def test_what_breaks_stands_among_the_upgrade_notes() -> None:
    newest = (ROOT / "docs" / "upgrade.md").read_text().split("\n## From ")[1]
    breaking = [path for path in FRAGMENTS if path.name.endswith(".breaking.md")]
    missing = {
        path.name: code
        for path in breaking
        if (code := re.findall(r"`([^`]+)`", path.read_text())[0]) not in newest
    }
    assert not missing


NUMBERS = (
    "None One Two Three Four Five Six Seven Eight Nine Ten Eleven Twelve Thirteen Fourteen "
    "Fifteen Sixteen Seventeen Eighteen Nineteen Twenty"
)


def test_what_a_release_breaks_is_counted_right_and_has_its_row() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    told = {
        release.partition(".0 (")[0]: (said[1], release)
        for release in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
        if (
            said := re.search(r"^- \*You upgrade\.\* (\w+) things break[;,]", release, re.MULTILINE)
        )
    }
    assert told.keys() >= {"0.4", "0.5"}
    for minor, (number, release) in told.items():
        breaking = release.partition("### Breaking\n\n")[2].partition("\n\n")[0].splitlines()
        assert number == NUMBERS.split()[len(breaking)], minor
        notes = (ROOT / "docs" / "upgrade.md").read_text().partition(f" to {minor}\n")[2]
        breaks, _, noticed = notes.partition("\n## ")[0].partition("\n### What you may notice\n")
        if minor != "0.4":  # its rows are not one for each line
            tables = re.findall(r"^\|---.*\n((?:\|.*\n)+)", breaks, re.MULTILINE)
            assert sum(rows.count("\n") for rows in tables) == len(breaking), minor
            assert noticed, minor


def test_each_release_begins_with_what_is_new_for_whom() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    for release in releases:
        name, _, text = release.partition("\n")
        _, _, head = text.partition("hat is new for you:\n\n")
        lines = head.partition("\n\n")[0].splitlines()
        assert 5 <= len(lines) <= 8, name
        assert all(line.startswith("- *") for line in lines), name
