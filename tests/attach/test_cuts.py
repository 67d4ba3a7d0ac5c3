"""What a guard from outside cuts besides idle connections is said to whoever sets the
limit.
"""

from __future__ import annotations

import pytest

from reaper.attach.cuts import said
from tests.helpers.attach_servers import Attach, Echo, at, until


@pytest.mark.parametrize(
    ("idle", "max_age", "even_unanswered", "words"),
    [
        (2.0, 0.0, False, "this also cuts an answer that has begun and pauses for 2s"),
        (2.0, 0.0, True, "this also cuts an answer that takes longer than 2s"),
        (0.0, 60.0, False, "this also cuts an answer that has begun when its connection is 1m old"),
        (0.0, 0.0, False, ""),
    ],
)
def test_the_words_name_what_each_limit_cuts(
    idle: float, max_age: float, even_unanswered: bool, words: str
) -> None:
    assert said(idle, max_age, even_unanswered) == words


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "lines"), [(("--close",), 1), ((), 0)])
def test_a_watch_that_closes_says_at_once_what_else_it_cuts(
    flags: tuple[str, ...], lines: int, port: int
) -> None:
    with Echo.server(port), Attach(*at(port), "--idle", "30s", *flags) as attach:
        Echo.answered(port)
        until(lambda: attach.of("found"), "the client is found")
        said_so_far = [event["text"] for event in attach.of("say")]
        assert said_so_far == [said(30.0, 0.0)] * lines
