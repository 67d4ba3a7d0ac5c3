"""Which processes come from one, by what may be read of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

FAMILY = """
import os, subprocess, sys
from reaper.attach.targets import descendants

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
child = int(shell.stdout.readline())
found = descendants([shell.pid])
os.kill(child, 15)
shell.wait()
sys.exit(found != sorted([shell.pid, child]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["0", "1", "2"])
def test_what_may_not_be_read_of_others_hides_no_child(hidden: str) -> None:
    """A process of another user, in a /proc that hides those of others."""
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("to mount a /proc needs root and unshare (Debian: apt-get install util-linux)")
    mount = f"mount -t proc -o hidepid={hidden} proc /proc"
    asked = f'{mount} && {{ cat /proc/self/stat > /dev/null; exec "$0" -c "$1"; }} || exit 77'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", asked]
        + [sys.executable, FAMILY],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 77:
        pytest.skip(f"no /proc may be mounted here: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")


ALONE = """
import os, subprocess, sys
from reaper.attach.targets import descendants

ended = subprocess.Popen(["true"])
ended.wait()
child = subprocess.Popen(["sleep", "60"])
found = descendants([os.getpid(), ended.pid])
child.kill()
child.wait()
sys.exit(found != [child.pid])
"""


def test_neither_this_process_nor_one_that_has_ended_is_a_descendant() -> None:
    """In a process of its own: other tests of this one have children, too."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
