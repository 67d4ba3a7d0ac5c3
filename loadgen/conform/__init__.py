"""What a server does with live clients and dead ones: every kind that its protocol
allows, and a verdict for each.

One rule: *what nothing grants is not judged, and counted*.
"""

from __future__ import annotations
