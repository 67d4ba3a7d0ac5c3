"""The documentation site: the same Markdown files that are read in the repository, and
the reference from docstrings.

The rule of this file: *no page exists twice*. The source folder is the repository
itself, so that README is the front page and a link that works there works here. `make
docs` builds it into out/site/, where a warning is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import reaper  # noqa: E402  (the checkout's own, whatever is installed)
from reaper.servers.cards import pages  # noqa: E402

project = "reaper"
author = "the authors of reaper"
version = release = reaper.__version__
# A fragment is news since the last release: then the pages say what no release has yet.
unreleased = any(path.name != "README.md" for path in (ROOT / "news").iterdir())

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "examples/README.md"]
exclude_patterns = ["out", ".venv", ".*"]

# What the sidebar shows, in its order. A page that is missing here is a warning, and so
# an error.
NAVIGATION = {
    "Begin": ["docs/symptoms", "docs/install", "docs/tutorial", "docs/guide", "examples/README"],
    "Tasks": [
        "docs/howto/why-closed",
        "docs/howto/websockets",
        "docs/howto/streams",
        "docs/howto/nat",
        "docs/howto/client-left",
        "docs/howto/drain",
        "docs/howto/waiting-for-connections",
        "docs/howto/scale-to-zero",
        "docs/howto/hangs-on-reload",
        "docs/howto/proxies",
        "docs/howto/too-many-files",
        "docs/howto/close-wait",
        "docs/howto/queuepool",
        "docs/howto/kubernetes",
        "docs/howto/slow-http",
        "docs/howto/many-clients",
        "docs/howto/tls-memory",
        "docs/keeper",
        "docs/scale",
        "docs/production",
        "docs/tick",
        "docs/uvicorn",
        "docs/run",
        "docs/attach",
        "docs/doctor",
    ],
    "Reference": [
        "docs/timeouts",
        *(f"docs/settings/{name}" for name in pages()),
        "docs/loadgen",
        "docs/journal",
        "docs/pipeline",
        "docs/pipeline-live",
        "docs/what-if",
        "docs/reference/index",
    ],
    "Background": [
        "docs/why-not-timeouts",
        "docs/how-it-works",
        "docs/performance",
        "docs/cluster",
        "docs/conform",
        "docs/silence",
        "docs/probe",
        "docs/reliability",
        "docs/guests",
    ],
    "Project": [
        "docs/stability",
        "docs/upgrade",
        "CHANGELOG",
        "CONTRIBUTING",
        "CODE_OF_CONDUCT",
        "SECURITY",
    ],
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that a repository's own view gives to headings

html_theme = "furo"
html_title = f"reaper, after {release}" if unreleased else f"reaper {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {  # the colours of all pictures and pages, see reaper/html/parts.py
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#2563c9", "color-brand-content": "#2563c9"},
    "dark_css_variables": {"color-brand-primary": "#6ea8fe", "color-brand-content": "#6ea8fe"},
}
html_show_sphinx = False
html_copy_source = False
highlight_language = "none"  # of a block that names none: what a program prints is no Python
pygments_style = "default"
pygments_dark_style = "github-dark"

default_role = "code"  # a single backtick in a docstring is code
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
python_maximum_signature_line_length = 100
copybutton_exclude = ".linenos, .gp, .go"


def set_apart(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Our docstrings end in lines such as "Cost: one lease."; for the reference each is
    a paragraph of its own.

    Of a module the reference shows the first paragraph, and what is promised of its
    names.
    """
    if what == "module" and "" in lines:  # what follows is for those who work on it
        promise = [line for line in lines if line.startswith("Stability:")]
        lines[lines.index("") :] = ["", *promise]
    told = []
    within = False
    for line in lines:
        said = re.match(r"(Timing|Cost|Source|Stability): (.*)", line)
        if said:
            told += ["", f"**{said[1]}:** {said[2]}"]
        else:
            told += ([""] if within and line and line[0] != " " else []) + [
                line.strip() if within else line
            ]
        within = bool(said) or (within and line.startswith(" "))
    lines[:] = told


PLAIN: dict[str, list[str]] = {}


def keep(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon in the docstring of an attribute for
    its type: ours are sentences.
    """
    if what in ("attribute", "data", "property"):
        PLAIN[name] = list(lines)


def put_back(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = PLAIN.pop(name, lines)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """The front page is README, which lists not all pages; the sidebar needs a list."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """A web server asks for index.html."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><title>reaper</title><meta http-equiv="refresh" content="0; url={root_doc}.html">'
            f'<a href="{root_doc}.html">reaper</a>\n'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", set_apart, priority=400)  # before napoleon's
    app.connect("autodoc-process-docstring", keep, priority=450)
    app.connect("autodoc-process-docstring", put_back, priority=600)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_front_door)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
