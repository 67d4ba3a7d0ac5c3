"""Draws docs/img/top.svg: `reaper top` of a real server with real connections in every phase.

One rule: *nothing in the picture is made up*. Run it after the view has changed:

    python -m scripts.top_picture [--connections 600] [--seconds 25] [--out docs/img/top.svg]
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from reaper.top.picture import Picture, picture_of, rates
from reaper.top.sources import Http
from reaper.top.view import Frame, draw

from .serving import ROOT, example, serving

PICTURE = ROOT / "docs" / "img" / "top.svg"
WIDTH, HEIGHT = 100, 30
FLAGS = ("--workers", "2", "--keep-alive", "60s", "--first-byte", "20s", "--headers", "15s", "--drain-idle", "0s")
MIX = "silent=60,chatty=10,stalled_headers=10,reset=5,stalled_body=5,mute=10"


def main() -> int:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=25.0, help="over which the clients come")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(example("http", *FLAGS), Path(folder, "log")) as server:
        load = [sys.executable, "-m", "loadgen", "run", "--target", server.target, "--protocol", "http", "--quiet"]
        load += f"--connections {given.connections} --mix {MIX} --timeout 60s --duration 70s".split()
        rate = str(max(round(given.connections / given.seconds), 1))
        process = subprocess.Popen([*load, "--connect-rate", rate], cwd=ROOT, stdout=subprocess.DEVNULL)
        source = Http("http://{}:{}".format(*server.address))
        time.sleep(given.seconds + 2.0)
        before = picture_of(source.ask())
        time.sleep(2.0)
        found = picture_of(source.ask())
        process.terminate()
        process.wait()
        _draw(found, rates(before, found), given.out)
    return 0


def _draw(found: Picture, rate: dict[str, float], out: Path) -> None:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    for line in draw(found, rate, Frame(WIDTH, HEIGHT), time.strftime("%H:%M:%S")):
        console.print(line, no_wrap=True, crop=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = console.export_svg(title="reaper top --connect http://127.0.0.1:9180", unique_id="reaper-top")
    out.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # a page must not load fonts from afar
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
