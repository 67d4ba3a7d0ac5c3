"""Commands of the checkout: demos, and trials against the tools and servers of others.

One rule: what a script starts it ends, by process id; `serving` is the only module that
starts a server.
"""

from __future__ import annotations
