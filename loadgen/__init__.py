"""A load generator that expects to be closed: it says when a server should hang up, and measures when it did.

One rule: nothing here knows how the server keeps time. The plan is drawn before the first packet, the verdict compares
what a client saw with that plan, and a bug shared with the server could only cancel out if code were shared: none is.
(Only the `simulate` modules import the library, as the system under test.)

    units, rng, histogram   durations as people write them; draws that depend on nothing but the seed; counts of
    durations behaviours, scenario    what each kind of client does; mixes of them as TOML (`scenarios/`) plan, capacity
    who does what and when, and how it must end; ports, descriptors and processes it takes client, worker          one
    connection; one epoll loop per process that plays its part of the plan protocols               what a step looks
    like on the wire: echo, HTTP, raw messages, fleet         what parent and processes tell each other; the parent that
    starts them and gathers what they saw records, stalls         what was seen of each connection, as bounds; who was
    late when verdict, thresholds     each close against its plan; further conditions report, deliver         the JSON;
    `picture`, `page`, `dashboard` and `live` show it journal, server_watch   the client's view in the shared journal;
    the server's memory and CPU probe                   a server's timeouts, found out simulate, simulate_trio the same
    plan and verdict in virtual time, against the library cli, cli_*              the command line
"""

from __future__ import annotations
