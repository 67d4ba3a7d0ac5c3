"""What was seen, compared with what was planned.

One rule: what the bounds prove is claimed, and nothing else. It has no clock and no socket, so that a run and a
simulation are judged by the same code.

Read: `histogram`, `stalls`, `records` (what is kept of a run), `observation` (all of it), `verdict` (one close, then
all of them), `thresholds` (further conditions), `report` (the JSON), `words` and `page` (the
JSON for people).
"""

from __future__ import annotations
