"""What the core costs: a touch, a tick, a connection's bytes, a mass expiry; and how exact it is.

One rule: compared structures are timed in interleaved rounds of one process, and their ratios are what is reported.

Read: `touch`, `ticks`, `memory` (the three prices), `mass`, `pauses`, `outliers`, `steady` (the worst single step),
`accuracy`, then `timers` and `journal_cost` for the parts around the core.
"""
