"""A load generator that expects to be closed: it says when a server should hang up, and measures when it did.

One rule: nothing here knows how the server keeps time. The plan is drawn before the first packet, the verdict compares
what a client saw with that plan, and a bug shared with the server could only cancel out if code were shared: none is.
(Only the `simulate` modules import the library, as the system under test.)

    units, rng          durations and addresses as people write them; draws that depend on nothing but the seed
    behaviours, plan    what each connection sends and when, and how it must end
    capacity            ports, descriptors and processes, reckoned before the start
    worker, fleet       one epoll loop per process; the parent that starts them and gathers what they saw
    verdict, report     each close against its plan; the JSON; `picture`, `page` and `dashboard` show it
"""

from __future__ import annotations
