"""Processes and sockets that carry a plan out.

One rule: the loop is open. The plan has fixed what is done when. A slow server or a
slow machine changes how late it is done, which is recorded; it never changes what is
done next.

Read `worker` first: the loop, from a step that is due to a close that was seen. Then
what it uses: `client` (an order, a connection), `connecting`, `wire` (TLS, reading,
writing), `protocols` (what a step is in bytes). Then the parent's side: `fleet` (the
processes of a run), `watchdog`. Last comes what is beside it: `machine`, `journal`.
"""

from __future__ import annotations
