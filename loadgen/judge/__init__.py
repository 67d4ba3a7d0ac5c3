"""What was seen, compared with what was planned.

One rule: what the bounds prove is claimed, and nothing else. Nothing here has a clock
or a socket, so that a run and a simulation are judged by the same code.

Read `records` (bounds, not points), `verdict` (one record against the law, then all)
and `stalls` (what may excuse it). `observation` is what the processes hand over, with
`histogram` in it; `report` makes JSON of all that, `thresholds` checks figures of it,
`words` and `page` show it.
"""

from __future__ import annotations
