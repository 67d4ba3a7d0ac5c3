"""Progress, picture and page: a run for people.

One rule: showing changes nothing. Every figure shown is in the report or in a heartbeat, and drawing happens in the
parent, which holds no connection.

Read: `dashboard` and `live` (while it runs), `page` and `picture` (after it), `deliver` (which of them, and the exit
status).
"""

from __future__ import annotations
