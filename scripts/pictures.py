"""Draws the pictures of `reaper top` and `reaper doctor` in the README, each from a
real run.

    python -m scripts.pictures [--out docs/img]

One rule: *what is drawn was printed*. The command runs on a terminal of 96 columns,
looking at a real server with real clients, and what it wrote becomes an SVG, as rich
draws it, that loads nothing.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from reaper.config.flags import Parser

from .serving import ROOT, example, free_port, load, serving

COLUMNS = 96
FORGETFUL = """
import asyncio, sys
async def serve(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
    await asyncio.Event().wait()  # it should close
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


def main() -> int:
    """Draw both pictures; returns the exit status."""
    parser = Parser(prog="python -m scripts.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img", metavar="DIR")
    out = parser.parse_args().out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {out}: {error.strerror}; name a folder")
    with tempfile.TemporaryDirectory() as folder:
        draw(top(Path(folder)), out / "top.svg", "reaper top")
        draw(doctor(Path(folder)), out / "doctor.svg", "reaper doctor")
    return 0


def top(folder: Path) -> str:
    """What `reaper top` prints of the reference server, and 400 clients: some talk,
    some are silent, some drip.
    """
    status = f"127.0.0.1:{free_port()}"
    flags = ("--workers", "1", "--status", status, "--keep-alive", "8s", "--first-byte", "12s")
    clients = "--connections 400 --timeout 8s --duration 5m --mix chatty=55,silent=30,drip=15"
    with serving(example("http", *flags), folder / "server.log") as server:
        command = load(f"http://127.0.0.1:{server.port}", clients)
        with subprocess.Popen(
            command,
            cwd=folder,  # where it writes what it has seen
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as loading:
            time.sleep(13.0)  # the first silent clients have been closed
            said = printed("top", "--connect", f"http://{status}", "--once")
            loading.terminate()
    return said


def doctor(folder: Path) -> str:
    """What `reaper doctor` prints of a server that forgets to close, some of whose
    clients have gone, and others say nothing.
    """
    port = free_port()
    command = [sys.executable, "-c", FORGETFUL, str(port)]
    with ExitStack() as stack:
        server = stack.enter_context(serving(command, folder / "server.log", port=port))
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(52)
        ]
        for client in clients:
            client.sendall(b"hello")
            client.recv(5)
        for client in clients[:12]:
            client.close()
        return printed("doctor", "--pid", str(server.pid), "--idle", "10s", "--for", "12s")


def printed(*words: str) -> str:
    """The command, and what it prints on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "reaper", *words]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.DEVNULL
    ):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the terminal is gone when the command is
            while more := os.read(ours, 65536):
                said += more
    os.close(ours)
    return f"$ reaper {' '.join(words)}\n{said.decode()}".replace("\r\n", "\n")


def draw(text: str, place: Path, title: str) -> None:
    """Write the picture of *text*, as a terminal shows it, to *place*."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.rstrip()), soft_wrap=True)
        console.print()  # rich cuts the lowest pixels of the last line
        drawn = console.export_svg(title=title, unique_id=place.stem)
    # It names a font on somebody's server; the next in the list is the reader's own.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    place.write_text("".join(f"{line.rstrip()}\n" for line in drawn.splitlines() if line.strip()))


if __name__ == "__main__":
    sys.exit(main())
