"""Commands that run for a while: a first signal lets them finish their step, a second Ctrl-C does not."""

from __future__ import annotations

import re
import signal
import sys
import threading

import pytest

from reaper.config.running import progress_on_stderr, stoppable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="raises SIGTERM within this process")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_a_second_ctrl_c_ends_it_at_once(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    notes: list[str] = []
    with pytest.raises(KeyboardInterrupt), stoppable(lambda: notes.append("asked")) as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert notes == ["asked", "asked"]
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_that_comes_in_the_middle_of_a_wait_is_noted_all_the_same() -> None:
    """The handler runs in the thread that waits, between any two steps of the wait."""
    main = threading.main_thread().ident
    with stoppable() as stop:
        sender = threading.Thread(target=lambda: [signal.pthread_kill(main, signal.SIGTERM) for _ in range(20_000)])
        sender.start()
        while sender.is_alive():
            stop.wait(0.0)
        assert stop.wait(20.0)


def test_progress_is_a_line_with_the_seconds_before_it_unless_it_is_not_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress_on_stderr(True)("hidden")
    progress_on_stderr(False)("shown")
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"\[ +\d+\.\d s\] shown\n", said.err)
