"""Two network namespaces and a link between them that can be taken down: how a peer
vanishes without a word.

Needs root, or user namespaces, and `ip` (iproute2), `unshare` and `nsenter`
(util-linux): `opened()` skips the test without. Programs of either side are run by
`Link.server` and `Link.client`, which a command line is appended to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

TOOLS = ("ip", "unshare", "nsenter")


class Link:
    """The two namespaces.

    Attributes:
        address, peer: Of the server's end, and of the client's.
        server, client: What runs a command in the namespace:
            `[*link.server, "python3", "-m", ...]`.
    """

    address = "10.77.0.1"
    peer = "10.77.0.2"

    def __init__(self, server: int, client: int) -> None:
        enter = [
            "nsenter",
            *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]),
            "--net",
            "--target",
        ]
        self.server, self.client = [*enter, str(server)], [*enter, str(client)]
        run(*self.server, *f"ip link add s type veth peer name c netns {client}".split())
        for prefix, name, address in (
            (self.server, "s", self.address),
            (self.client, "c", self.peer),
        ):
            run(*prefix, *f"ip address add {address}/24 dev {name}".split())
            run(*prefix, *["ip", "link", "set", "lo", "up"])
            run(*prefix, *f"ip link set {name} up".split())

    def down(self, *, unnoticed: bool = False) -> None:
        """From now on nothing comes from the client, and nothing reaches it.

        The kernel looks once a second which links have changed. With *unnoticed* it has
        just looked at others: for most of a second it takes this one for up, and what
        the server sends is turned away on its own machine.
        """
        if unnoticed:
            run(*self.server, *["ip", "link", "add", "x", "type", "veth", "peer", "name", "y"])
            for name in "xy":
                run(*self.server, *f"ip link set {name} up".split())
        run(*self.client, *["ip", "link", "set", "c", "down"])

    def up(self) -> None:
        """It is back."""
        run(*self.client, *["ip", "link", "set", "c", "up"])


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def _holder(*command: str) -> Iterator[int]:
    """A process that keeps a namespace alive: its id. *command* runs another command in
    a new one.
    """
    with subprocess.Popen(
        [*command, "sh", "-c", "echo $$; exec sleep 3600"], stdout=subprocess.PIPE, text=True
    ) as own:
        try:
            assert own.stdout is not None
            line = own.stdout.readline()
            if not line.strip().isdigit():
                raise OSError(f"{' '.join(command)} made no namespace")
            yield own.pid
        finally:
            own.kill()


@contextmanager
def opened() -> Iterator[Link]:
    """A `Link` for the length of the block; the test is skipped, and says why, where
    there can be none.
    """
    root = os.geteuid() == 0
    with ExitStack() as stack:
        try:
            if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
                raise OSError(f"no {', '.join(missing)}")
            server = stack.enter_context(
                _holder("unshare", "--net", *([] if root else ["--map-root-user"]))
            )
            enter = (
                []
                if root
                else ["nsenter", "--user", "--preserve-credentials", "--target", str(server)]
            )
            link = Link(server, stack.enter_context(_holder(*enter, "unshare", "--net")))
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(
                f"a vanished client needs network namespaces (root, or unshare -rn): {error}"
            )
        yield link
