"""`python -m scripts.suites`: what is read from a run, and when two runs agree."""

from __future__ import annotations

import json
import tomllib

import pytest

from scripts.serving import ROOT
from scripts.suites import __main__ as suites
from scripts.suites.outcomes import Comparison, Unfinished, covers, differing, outcomes

END = json.dumps({"exitstatus": 0, "$report_type": "SessionFinish"})
TABLES = tomllib.loads((suites.HERE / "suites.toml").read_text())
LISTED = tomllib.loads((suites.HERE / "differences.toml").read_text())


def row(name: str, outcome: str, kind: str = "TestReport") -> str:
    return json.dumps({"nodeid": name, "outcome": outcome, "$report_type": kind})


def test_a_test_is_failed_if_any_part_of_it_failed() -> None:
    parts = [row("a", "passed"), row("a", "failed"), row("a", "skipped"), row("b", "passed")]
    assert outcomes([*parts, END]) == {"a": "failed", "b": "passed"}


def test_a_test_that_is_skipped_in_its_body_is_skipped() -> None:
    assert outcomes([row("a", "passed"), row("a", "skipped"), row("a", "passed"), END]) == {
        "a": "skipped"
    }


def test_a_file_that_cannot_be_read_as_tests_is_a_failed_test() -> None:
    lines = [row("x.py", "failed", "CollectReport"), row("y.py", "passed", "CollectReport"), END]
    assert outcomes(lines) == {"x.py": "failed"}


@pytest.mark.parametrize("lines", [[], [row("a", "passed")], [row("a", "passed"), '{"nodeid": "b']])
def test_a_report_without_an_end_is_not_judged(lines: list[str]) -> None:
    with pytest.raises(Unfinished):
        outcomes(lines)


def test_a_test_that_only_one_run_has_differs() -> None:
    assert differing({"a": "passed", "b": "passed"}, {"a": "passed", "c": "failed"}) == ["b", "c"]


def test_a_test_that_only_passes_guarded_differs() -> None:
    assert differing({"a": "failed"}, {"a": "passed"}) == ["a"]


@pytest.mark.parametrize(
    ("entry", "name", "means"),
    [
        ("x.py::a", "x.py::a", True),
        ("x.py::a", "x.py::a[h11]", True),
        ("x.py::a", "x.py::ab", False),
        ("x.py::a[h11]", "x.py::a[h11]", True),
        ("x.py::a[h11]", "x.py::a[httptools]", False),
    ],
)
def test_an_entry_means_a_test_with_any_parameters(entry: str, name: str, means: bool) -> None:
    assert covers(entry, name) is means


STOCK = {"a": "passed", "b[1]": "passed", "c": "passed", "d": "failed"}
GUARDED = {"a": "passed", "b[1]": "failed", "c": "failed", "d": "failed"}


def test_a_difference_that_is_not_listed_is_the_guards() -> None:
    assert Comparison(STOCK, GUARDED, ["b"]).unlisted == ["c"]


def test_a_difference_that_is_not_seen_again_does_not_count_and_is_named() -> None:
    comparison = Comparison(STOCK, GUARDED, ["b"], frozenset(["b[1]"]))
    assert (comparison.unlisted, comparison.once) == ([], ["c"])


def test_an_entry_that_no_test_differs_by_is_named() -> None:
    assert Comparison(STOCK, GUARDED, ["b", "gone"]).unseen == ["gone"]


def test_the_row_counts_both_runs_and_what_is_not_listed() -> None:
    row = Comparison(STOCK, GUARDED, ["b"]).row("server 1", 1234)
    assert row == "| server 1 | 3 / 1 | 1 / 3 | 1,234 | 2 | 1 | 0 |"


def test_the_row_says_where_leases_are_not_counted() -> None:
    assert " not counted " in Comparison(STOCK, GUARDED, []).row("server 1", None)


@pytest.mark.parametrize("name", TABLES)
def test_a_suite_has_a_version_that_is_pinned(name: str) -> None:
    assert suites.pinned(name, (ROOT / "constraints.txt").read_text())


@pytest.mark.parametrize("name", TABLES)
def test_the_plugin_of_a_suite_is_there(name: str) -> None:
    plugin = TABLES[name].get("plugin", "leases_taken")
    assert (suites.PLUGINS / f"{plugin}.py").is_file()


def test_a_listed_difference_names_a_suite_a_test_and_a_reason() -> None:
    assert set(LISTED) <= set(TABLES)
    entries = [entry for group in LISTED.values() for entry in group]
    assert all(set(entry) == {"test", "reason"} and entry["reason"] for entry in entries)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nginx"], "no suite is called 'nginx'"),
        (["--source", "uvicorn=/no/such"], "NAME=FOLDER is wanted"),
    ],
)
def test_a_suite_that_is_not_there_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suites.main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
