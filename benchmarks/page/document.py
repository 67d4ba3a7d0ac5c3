"""docs/performance.md and docs/performance-full.md: the templates with their placeholders filled from the results.

One rule: *no figure is typed by hand*. Words stand in the templates, `goals.py`, `readings.py`, `short.py` and
`tables.py`, numbers in the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from . import plots, short, tables, tables_more
from .goals import EXPLANATIONS, UNEXPLAINED, judge
from .results import Results
from .tables import MET, MISSED

TEMPLATES = {"": "performance.template.md", "-full": "performance-full.template.md"}
"""What is added to the name of the page -> its template, next to this file."""
HOLE = re.compile(r"\{\{ *([^{} ]+)(?: +([^{} ]+))? *\}\}")
UNKNOWN = "not measured"

Filler = Callable[[Results], str]


def goals(results: Results) -> str:
    """The table of goals, a row each, whether it was measured or not."""
    rows = []
    for goal, found in judge(results):
        if found is None:
            rows.append([goal.text, UNKNOWN, "", ""])
        else:
            rows.append([goal.text, found.text, found.peer, MET if found.value <= goal.limit else MISSED])
    missed = sum(row[-1] == MISSED for row in rows)
    unknown = sum(row[1] == UNKNOWN for row in rows)
    words = f"{len(rows)} goals: {len(rows) - missed - unknown} met, {missed} missed, {unknown} not measured.\n\n"
    return words + tables.table(["goal", "measured", "peer", ""], rows)


def explanations(results: Results) -> str:
    """What was tried, for each goal that is missed."""
    told = [
        f"- {MISSED} {goal.text}. {EXPLANATIONS.get(goal.key, UNEXPLAINED)}"
        for goal, found in judge(results)
        if found is not None and found.value > goal.limit
    ]
    return "\n".join(told) if told else "None is missed in this run."


FILLERS: dict[str, Filler] = {
    "goals": goals,
    "explanations": explanations,
    **short.FILLERS,
    **tables.FILLERS,
    **tables_more.FILLERS,
}


def fill(template: str, results: Results, images: Path, relative: str) -> str:
    """The text of *template*; its plots are written below *images*, which the text calls *relative*."""

    def replace(match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "plot":
            path = images / f"performance-{argument}.svg"
            if not plots.draw(results, argument, path):
                return "*(no plot: not measured)*"
            return f"![{plots.PLOTS[argument][2]}, by number of connections]({relative}/{path.name})"
        if argument is not None:
            value = results.get(name, argument)
            return "(not measured)" if value is None else f"{value:g}"
        return FILLERS[name](results)

    return HOLE.sub(replace, template)


def write(directory: Path, out: Path) -> None:
    """Write *out*, the page of all tables next to it, and the plots from *directory*. NoResults if there are none."""
    results = Results(directory)
    out.parent.mkdir(parents=True, exist_ok=True)
    for added, name in TEMPLATES.items():
        template = Path(__file__).with_name(name).read_text().replace("(performance-full.md)", f"({out.stem}-full.md)")
        text = fill(template, results, out.parent / "img", "img")
        out.with_stem(out.stem + added).write_text(text)
