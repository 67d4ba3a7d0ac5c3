"""Which messages a commit may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.commit_subject import main, wrong


@pytest.mark.parametrize(
    "message",
    [
        "core: bound a cascade",
        "core: bound a cascade\n\nA million leases took 163 ms in one call.\n",
        "docs, loadgen: say what a probe cannot see",
        "servers/http2: count a PING once",
        'Revert "core: bound a cascade"',
        "Merge branch 'main'",
    ],
)
def test_a_message_with_an_area_and_a_short_subject_may_pass(message: str) -> None:
    assert wrong(message) is None


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("Bound a cascade", "expected `area: what changed`"),
        ("core: ", "expected `area: what changed`"),
        ("", "expected `area: what changed`"),
        (f"core: {'x' * 67}", "the subject has 73 characters"),
        ("core: bound a cascade\nbecause it took long", "the line after the subject is empty"),
    ],
)
def test_any_other_message_is_refused_in_one_line(message: str, why: str) -> None:
    found = wrong(message)
    assert found is not None
    assert why in found
    assert "\n" not in found


def test_the_command_leaves_out_what_git_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text("core: bound a cascade\n# Please enter the commit message\n")
    assert main([str(path)]) == 0
    path.write_text("Bound it\n# Please enter the commit message\n")
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith("'Bound it': expected")
