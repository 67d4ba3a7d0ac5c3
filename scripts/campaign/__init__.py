"""The campaign: real servers under what a bad week does to them, for an hour or for three minutes.

One rule: *a trial says what it saw, what it lost, and what it could not see*; it passes or fails by counts, never by
how long anything took. `python -m scripts.campaign` runs it, everything on the loopback, everything ended at the end.

    clients.py     clients that ask, talk, or attack, each with its own account of what was lost
    trials.py      signals, restarts, workers killed and stopped, reloads, full disks, no descriptors, attackers
    lifetimes.py   many lifetimes through the servers, and whether memory, descriptors and leases stay flat
    __main__.py    the command: what runs when, the report, the figures of docs/reliability.md
"""
