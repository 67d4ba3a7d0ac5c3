"""`python -m reaper.pipeline`."""

from __future__ import annotations

import sys

from ..errors import NotInstalled


def main() -> int:
    """Run the command line of the process and return its exit status."""
    try:
        from . import cli
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
