"""Processes and sockets that carry a plan out.

One rule: open loop. What is done when was fixed by the plan; a slow server or a slow machine changes how late it is
done, which is recorded, and never what is done next.
"""

from __future__ import annotations
