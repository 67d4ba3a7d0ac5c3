"""A load generator that expects to be closed: it knows when a server should hang up, and measures
when it did.

One rule: nothing here knows how the server keeps time. The plan is drawn before the first packet,
the verdict compares what a client saw with that plan, and a bug shared with the server could only
cancel out if code were shared: none is. (The `simulate` modules import the library as the system
under test, `drive.journal` its format of files.)

Read in this order; imports run the same way, from left to right and top to bottom:

    units                       what a person types, as quantities
    plan/                       what each client does, when, and how it must end; what that takes of the machine
    judge/                      what was seen, as bounds; each close against its plan; report and page
    drive/                      processes and sockets that carry a plan out
    clients, probe, race,       single clients, and what programs and people ask with them: timeouts, lost requests,
    backend, vanish             a proxy's pool, clients that are gone
    simulate, journals          the same plan in virtual time, against the library: judged, or written as journals
    cli, cli_*                  the command line, the door to all of it
"""

from __future__ import annotations

__all__: list[str] = []  # the door is the command line: `loadgen.cli.main`
