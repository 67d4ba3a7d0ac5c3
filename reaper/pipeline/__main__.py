"""`python -m reaper.pipeline`."""

from __future__ import annotations

import sys

from ..errors import NotInstalled

if __name__ == "__main__":
    try:
        from .cli import main
    except NotInstalled as _error:
        print(_error, file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
