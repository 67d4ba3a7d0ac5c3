"""Who does what and when, and how it must end.

One rule: a plan is a pure function of its arguments. It reads no clock and opens no socket; only `capacity` looks at
the machine, and only to refuse what cannot fit.
"""

from __future__ import annotations
