"""The documentation site builds without a warning, and a browser shows every page of it
on a desk and on a phone.
"""

from __future__ import annotations

import html
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WIDTHS = (1280, 390)
DRAWN = 100
"""Characters that fit beside each other on a desk of that width."""

# Each page in a frame as wide as a screen; what is wider than its frame is what a
# reader would have to scroll for.
MEASURE = """<!doctype html><body><pre id="found">nothing measured</pre><script>
const found = [];
const measure = async (page, width) => {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px";
  frame.style.height = "900px";
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const root = frame.contentDocument.documentElement;
  const broken = [...frame.contentDocument.images].filter(image => image.complete && !image.naturalWidth);
  const code = [...frame.contentDocument.querySelectorAll("pre")];
  const clipped = code.filter(block => block.scrollWidth > block.clientWidth);
  const bad = [...broken.map(image => image.src), ...clipped.map(block => block.innerText)];
  found.push([page, width, root.scrollWidth, bad]);
  frame.remove();
};
(async () => {
  for (const page of PAGES) for (const width of WIDTHS) await measure(page, width);
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    flags = re.search(r"-m sphinx (.*?) -d ", (ROOT / "Makefile").read_text())
    assert flags is not None
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *flags[1].split(),
        "-d",
        str(out / "trees"),
        ".",
        str(out / "html"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # A page without a place in the sidebar, a broken link or anchor, a docstring that
    # is no markup.
    assert "-W" in command
    return out / "html"


def test_no_drawing_is_wider_than_a_page() -> None:
    """A line of code that is too long goes on in the next one; a drawing would fall
    apart.
    """
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
        for block in (block for language, block in blocks if not language):
            if "+--" in block or "level 1" in block:
                assert max(map(len, block.splitlines())) <= DRAWN, path


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: Path) -> None:
    import reaper
    import reaper.asyncio
    import reaper.trio

    text = "".join(path.read_text() for path in (site / "docs" / "reference").glob("*.html"))
    documented = set(re.findall(r'id="reaper[\w.]*\.(\w+)"', text))
    for module in (reaper, reaper.trio, reaper.asyncio):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert name in documented, f"{module.__name__}.{name}"


@pytest.mark.slow
def test_pages_fit_a_desk_and_a_phone_and_no_code_is_clipped_and_no_picture_lost(
    site: Path, browse: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    pages = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if path.name != "index.html"
    )
    pages.append("docs/reference/index.html")
    script = MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    (site / "measure.html").write_text(script)
    options = [
        "--allow-file-access-from-files",
        "--virtual-time-budget=120000",
        "--window-size=1400,1000",
    ]
    done = browse(site / "measure.html", *options)
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said is not None
    measured = json.loads(html.unescape(said[1]))
    assert len(measured) == len(pages) * len(WIDTHS)
    assert [row for row in measured if row[2] > row[1] or row[3]] == []
