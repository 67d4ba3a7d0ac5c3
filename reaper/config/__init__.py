"""One frozen, typed configuration. A setting is declared once; everything said about it is derived from that.

Read in this order:

    settings    the declarations, the loader (defaults < file < environment < command line, all or nothing), reloading
    options     what one setting is: its kind, how it is read, checked and shown
    durations   `30s` and seconds, the same number
    flags       the settings as command-line flags
    running     what commands that run for a while have in common
    lint        what is legal and yet unwise, and what it costs
    balancers   what proxies and load balancers do with idle connections
    command     `check`, and `table`: the settings as a table for the documentation
"""

from __future__ import annotations

from .settings import DEFAULT, OPTIONS, SECTIONS, Attach, Limits, Reaper, ReaperConfig, Server, Timeouts

__all__ = ["ReaperConfig", "Reaper", "Timeouts", "Limits", "Server", "Attach", "OPTIONS", "SECTIONS", "DEFAULT"]
