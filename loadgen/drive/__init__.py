"""Processes and sockets that carry a plan out.

One rule: open loop. What is done when was fixed by the plan; a slow server or a slow machine changes how late it is
done, which is recorded, and never what is done next.

Read: `order` (what a process is asked to do), `client` (one connection), `protocols` (bytes), `connecting` and `worker`
(one process), `processes` and `fleet` (all of them, from the parent). Beside them: `recognise` (another protocol than
expected), `journal` (the client's view, written down), `server_watch` (the server's memory and CPU).
"""

from __future__ import annotations
