"""What scripts start hears the signals that it would hear in a terminal, and does not
outlive them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.serving import ROOT, serving

STARTS_ANOTHER = (
    "import subprocess, sys; from scripts.serving import hear_interrupts; hear_interrupts(); "
    "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
)
SAYS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_what_is_started_in_the_background_of_a_shell_hears_an_interrupt() -> None:
    # So a shell without job control starts what is followed by `&`.
    command = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c"]
    found = [
        subprocess.run(
            [*command, *program], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for program in ([SAYS], [STARTS_ANOTHER, SAYS])
    ]
    assert found == ["False\n", "True\n"]


DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('listening on 127.0.0.1:1', flush=True); time.sleep(60)"
)


def test_a_server_whose_end_is_no_longer_waited_for_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(patience: float) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    command = [sys.executable, "-c", DEAF]
    with pytest.raises(KeyboardInterrupt), serving(command, tmp_path / "log") as server:
        monkeypatch.setattr(server.process, "wait", interrupted)
    assert server.status == -signal.SIGKILL
