"""The name of a test is one short claim. Whether a signature is typed as a whole or not
at all is mypy's to say: `disallow_incomplete_defs`.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
LONGEST_NAME = 80
"""Characters. A longer name is two claims, and two claims are two tests."""


def test_the_names_of_tests_are_short() -> None:
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 1000
    assert not [name for name in names if len(name) > LONGEST_NAME]
