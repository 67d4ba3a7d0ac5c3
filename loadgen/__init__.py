"""A load generator that knows when a server should close a connection, and measures
when it did.

One rule: nothing here knows how the server keeps time. The plan is drawn before the
first packet, and the verdict compares what a client saw with that plan. A bug that both
sides share could hide itself only if they shared code, and they share none. (`simulate`
and `journals` import the library as the system under test, `drive.journal` imports its
format of files.)

Read in this order; imports run the same way, from left to right and top to bottom:

    units                   reads what a person types, as quantities
    plan/                   says what each client does, when, how it must end, and what
                            that takes
    judge/                  keeps what was seen, as bounds; compares it with the plan;
                            reports
    drive/                  carries a plan out, with processes and sockets
    clients, probe, race,   play single clients, and ask with them: for timeouts, lost
                            requests,
    backend, vanish         the pool of a proxy, clients that are gone
    conform/                every kind of live and dead client at a server, and for
                            each a verdict
    simulate, journals      play the same plan in virtual time, against the library: it
                            is judged, or written as journals
    cli, cli_options        are the command line, the door to all of it
"""

from __future__ import annotations

__all__: list[str] = []  # the door is the command line: `loadgen.cli.main`
