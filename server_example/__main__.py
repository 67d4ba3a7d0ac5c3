"""`python -m server_example echo|http`: the command line of the example servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reaper.arguments import Parser, add_settings, settings
from reaper.config import ReaperConfig
from reaper.errors import ConfigError

from . import echo
from .workers import CannotFit, Serve, Supervisor, Worker, descriptors, plan, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 good, 1 a worker failed, 2 bad arguments."""
    parser = Parser(prog="python -m server_example", description="Example servers with the idle reaper embedded.")
    commands = parser.add_subparsers(required=True, metavar="echo|http", dest="kind")
    for name, help_ in (("echo", "sends back what comes"),):
        command = commands.add_parser(name, help=help_, description=f"A TCP server that {help_}.")
        command.add_argument("--config", metavar="FILE", help="a reaper.toml")
        command.add_argument(
            "--connections",
            type=int,
            metavar="N",
            help="how many must be able to be open at once; sizes --workers auto",
        )
        add_settings(command, ("server", "reaper", "timeouts", "limits"))
    parsed = parser.parse_args(arguments)
    try:
        config = ReaperConfig.load(parsed.config, overrides=settings(parsed))
        if parsed.connections is not None and parsed.connections < 1:
            raise CannotFit(f"--connections {parsed.connections}: must be an integer >= 1")
        workers = plan(config.server.workers, parsed.connections, descriptors())
        supervisor = Supervisor(config.server.host, config.server.port, workers)
    except (ConfigError, CannotFit) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {config.server.host}:{config.server.port}: {error.strerror}", file=sys.stderr)
        return 2
    say(f"{parsed.kind}: idle {config.timeouts.idle:g} s, tick {config.reaper.tick:g} s")
    return supervisor.run(_serve(parsed.kind, config))


def _serve(kind: str, config: ReaperConfig) -> Serve:
    async def serve(worker: Worker) -> None:
        await echo.serve(worker, config)

    return serve


if __name__ == "__main__":
    sys.exit(main())
