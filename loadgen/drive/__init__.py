"""Processes and sockets that carry a plan out.

One rule: open loop. What is done when was fixed by the plan; a slow server or a slow machine changes how late it is
done, which is recorded, and never what is done next.

Read: `client` (what a process is asked to do, and one connection), `protocols` and `wire` (bytes), `connecting` and
`worker` (one process), `processes` and `fleet` (all of them, from the parent). Beside them: `watchdog` (when a run has
shown all it can), `journal` (the client's view, written down), `machine` (memory and CPU of server and generator).
"""

from __future__ import annotations
