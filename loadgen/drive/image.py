"""Imported once, by the process from which all others are forked: they share these modules' memory instead of loading
their own.

One rule: nothing but imports. What is imported here is frozen, so that no collection writes into the shared pages.
"""

from __future__ import annotations

import gc

from . import worker

__all__ = ["worker"]

gc.collect()
gc.freeze()
