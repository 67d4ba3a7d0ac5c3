"""What was seen, compared with what was planned.

One rule: what the bounds prove is claimed, and nothing else. It has no clock and no socket, so that a run and a
simulation are judged by the same code.
"""

from __future__ import annotations
