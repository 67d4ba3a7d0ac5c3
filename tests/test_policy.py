"""Claims about `reaper.policy`: the phases and the rules that govern them."""

from __future__ import annotations

from reaper.config import OPTIONS
from reaper.policy import RULES, TOO_OLD, TOO_SLOW, Phase


def test_every_phase_has_a_rule_whose_timeout_and_reason_are_one_setting() -> None:
    assert set(RULES) == set(Phase)
    for phase, rule in RULES.items():
        if rule.timeout is not None:
            assert f"timeouts.{rule.timeout}" in OPTIONS
            assert rule.timeout == phase.value


def test_only_a_request_in_flight_has_no_timeout() -> None:
    assert [phase for phase, rule in RULES.items() if rule.timeout is None] == [Phase.IN_FLIGHT]


def test_dripped_bytes_do_not_restart_what_is_absolute() -> None:
    absolute = {phase for phase, rule in RULES.items() if rule.timeout and not rule.restarted_by}
    assert {Phase.HANDSHAKE, Phase.HEADERS, Phase.LINGER} <= absolute


def test_reasons_of_rates_and_age_are_settings_too() -> None:
    assert {f"limits.{reason}" for reason in TOO_SLOW.values()} | {f"timeouts.{TOO_OLD}"} <= set(OPTIONS)
