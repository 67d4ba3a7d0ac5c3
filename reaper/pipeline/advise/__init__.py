"""Which timeout, tick and wheel size this traffic wants.

One rule: *a silence that was cut tells only that it was longer*. Read `survival`
(statistics, no Spark), `traffic` (silences counted), `access_logs` (logs of other
servers), `run`, `command`.
"""

from ..doors import callable_room

callable_room(__name__)
