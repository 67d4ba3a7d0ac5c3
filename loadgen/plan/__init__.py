"""Who does what and when, and how it must end.

One rule: a plan is a pure function of its arguments. It reads no clock and opens no
socket; only `capacity` looks at the machine, and only to refuse what cannot fit.

Read `behaviours` (one client: the next step), `plan` (all clients of a run, drawn from
a seed), `scenario` (how both are written by people), `capacity`; and `acts` (one client
that is written down as a row).
"""

from __future__ import annotations
