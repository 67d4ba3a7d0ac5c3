"""Plays one client, act by act, on one connection, and keeps what it saw: the clients
of `conform`, of the probe in HTTP/2, and of the trials of this project.

One rule: *it says what was seen, and judges nothing*.
"""
