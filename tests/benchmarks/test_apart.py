"""The peer that does nothing but read and write, and how its timers are said."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

from benchmarks.apart import timers_said
from benchmarks.common import ROOT


def test_the_bare_peer_echoes_and_says_how_late_its_timers_came() -> None:
    command = [sys.executable, "-m", "benchmarks.peers.bare", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        host, _, port = peer.stdout.readline().split()[-1].rpartition(":")
        with socket.create_connection((host, int(port)), 60) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        peer.terminate()
        said = [json.loads(line) for line in peer.stdout]
    assert [sorted(each) for each in said] == [["late", "latest_s", "timers"]] * 2


def test_the_timers_of_all_processes_are_added_up() -> None:
    some = {"timers": 30, "late": 0, "latest_s": 0.25}
    assert (
        timers_said([some, {"timers": 10, "late": 4, "latest_s": 1.5}]) == "4 of 40 (10.00%), 1,500"
    )
    assert timers_said([]) == "-"
