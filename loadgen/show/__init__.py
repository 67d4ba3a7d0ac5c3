"""Progress and page: a run for people.

One rule: showing changes nothing. Every figure shown is in the report or in a heartbeat, and drawing happens in the
parent, which holds no connection.

Read: `dashboard` (while it runs), `page` (after it).
"""

from __future__ import annotations
