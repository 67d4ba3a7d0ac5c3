"""`python -m reaper.journal`: see `command`."""

from __future__ import annotations

import sys

from .command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
