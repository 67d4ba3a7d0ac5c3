"""The test suites that servers bring along, run twice: as they are, and with their
servers guarded.

    python -m scripts.suites [uvicorn hypercorn ...]

One rule: *a guest breaks no test of its host*. What a server's authors hold true of it
is in their own tests, and nobody here would have thought of most of it. So each suite
runs in a venv of its own below out/, stock, then again by `reaper run --inside`, and
what is compared is each test by its name.

A test whose outcome differs is run once more both ways; if it differs again, it counts.
It is the fault of the guard, unless `differences.toml` says which assumption of the
test does not hold, and why that is right. Exit status 0: no others were seen. 1: there
are others, or a run did not end. 2: what was asked for cannot be run.

- `suites.toml`: where each suite comes from, and what it needs.
- `differences.toml`: the tests that assume what a guard changes, one reason each.
- `outcomes.py`: what a run said, and how two runs differ; pure.
- `__main__.py`: fetches, installs, runs and prints the table.
- `plugins/`: what pytest is given in the process of a guarded run, where a suite's
  tests do not start servers but make their parts one by one.
"""
