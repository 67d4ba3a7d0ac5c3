"""Journals of any size, right or with faults planted: to test and to measure with, without Spark.

One rule: *same arguments, same bytes* (with the same numpy and pyarrow). Read `habits` (the clients), `loop` (the
server), `faults`, `writer`, `files`, `run`, `command`: `python -m benchmarks.pipeline.generate`.

The number of rows is met within 1 %; `--json` says it exactly, with the verdicts that an audit must come to. Every
server keeps the law, to the tick, except on the connections that `--faults` plants by number.

The load has a day's wave and quieter weekends. Listeners: echo 30 s, http 75 s, websocket 300 s, tunnel 1 h. Silences
are lognormal with Pareto tails; some clients send a byte just before the timeout, some headers byte by byte; tunnels
live as long as their server, a month by default. Twice a crowd comes, and everything breaks: the network (a tenth
stays) or, on every second writer, the server, which drains and begins a new run; within seconds all are back, and what
then falls silent is reaped together. Event loops stall for 0.1 to 2.5 s. Four writers share a machine and its clock.
"""
