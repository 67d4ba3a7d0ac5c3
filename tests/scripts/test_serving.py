"""What scripts start hears the signals that it would hear in a terminal."""

from __future__ import annotations

import subprocess
import sys

from scripts.serving import ROOT

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
