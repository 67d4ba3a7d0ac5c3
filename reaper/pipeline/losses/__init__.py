"""Which requests were lost to an idle close: the keep-alive race, from the logs of the
proxy.

One rule: *what a log cannot tell apart is said to be untold*. Read `formats` (what each
proxy logs of a request that it lost), `run`, `command`.
"""

from ..doors import callable_room

callable_room(__name__)
