"""What the reapers of all loops share."""

from __future__ import annotations

from typing import Any

import pytest

from reaper.driver.reaper import tamed_collector
from reaper.errors import InvalidArgument


@pytest.mark.parametrize("odd", [1, 0, None, "yes"])
def test_whether_to_tame_the_collector_is_yes_or_no(odd: Any) -> None:
    with (
        pytest.raises(InvalidArgument, match="tame_gc must be True or False"),
        tamed_collector(odd),
    ):
        pass
