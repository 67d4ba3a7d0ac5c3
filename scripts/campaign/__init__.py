"""The campaign: real servers under what a bad week does to them, for an hour or for
three minutes.

*A trial says what it saw, what it lost, and what it could not see*; it passes or fails
by counts, never by how long anything took. `python -m scripts.campaign` runs it,
everything on the loopback, everything ended at the end.
"""
