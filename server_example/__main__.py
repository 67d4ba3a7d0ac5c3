"""`python -m server_example [echo|http]`: the command line of the example servers."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reaper.config import ReaperConfig
from reaper.config.flags import Parser, add_settings, add_version, settings
from reaper.errors import ConfigError, NotInstalled, needs
from reaper.logs import configure

try:
    with needs("server_example", "idle-reaper[http]"):
        from . import serving
        from .listening import Listening, beside, tls_context
        from .notify import say, speak
        from .planning import descriptors, plan
        from .status import Doors
        from .workers import Supervisor
except NotInstalled as error:
    print(error, file=sys.stderr)
    raise SystemExit(2) from None

SERVERS = {
    "echo": "sends back what comes",
    "http": "speaks HTTP/1.1 and limits every kind of idleness",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0 good, 1 a worker failed, 2 bad
    arguments.
    """
    parser = Parser(
        prog="python -m server_example",
        description="Reference servers with the idle reaper embedded.",
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="[echo|http]", dest="kind")
    for name, does in SERVERS.items():
        command = commands.add_parser(
            name, help=f"a server that {does}", description=f"A TCP server that {does}."
        )
        command.add_argument("--config", metavar="FILE", help="a reaper.toml")
        command.add_argument(
            "--connections",
            type=int,
            metavar="N",
            help="how many must fit at once; sizes `--workers auto`",
        )
        command.add_argument(
            "--journal", metavar="DIR", help="log every connection there, for reaper.pipeline"
        )
        command.add_argument(
            "--share-port",
            action="store_true",
            help="start although a server of ours listens on the port, and accept from its "
            "sockets: then stop that one",
        )
        add_settings(command, ("server", "reaper", "timeouts", "limits"))
    words = sys.argv[1:] if arguments is None else [*arguments]
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words = ["echo", *words]
    parsed = parser.parse_args(words)

    def load() -> ReaperConfig:
        return ReaperConfig.load(parsed.config, overrides=settings(parsed))

    try:
        config = load()
        configure(config.reaper.log_format, config.reaper.log_level)
        speak(config.reaper.log_format)
        if parsed.connections is not None and parsed.connections < 1:
            raise ConfigError(f"--connections {parsed.connections}: must be an integer >= 1")
        most = config.limits.max_connections if parsed.kind == "http" else None
        workers = plan(config.server.workers, parsed.connections, descriptors(), most)
        _check(config, parsed.journal)
        listening = Listening.activated() or Listening.open(
            config.server.host, config.server.port, workers, share=parsed.share_port
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        asked = (
            " (--share-port to take its place)"
            if error.errno == errno.EADDRINUSE and not parsed.share_port
            else ""
        )
        print(
            f"cannot listen on {config.server.host}:{config.server.port}: {error.strerror}{asked}",
            file=sys.stderr,
        )
        return 2
    try:
        status = (
            beside(config.server.status, share=parsed.share_port) if config.server.status else None
        )
    except (OSError, ValueError) as error:
        listening.close()
        print(f"server.status: cannot listen on {config.server.status}: {error}", file=sys.stderr)
        return 2
    say(
        f"{parsed.kind}: idle {config.timeouts.idle:g} s, tick {config.reaper.tick:g} s",
        event="starting",
    )
    if status is not None:
        host, port = status.getsockname()[:2]
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        say(
            f"status on http://{shown}/status, metrics on http://{shown}/metrics",
            event="status",
            host=host,
            port=port,
        )
    serve = partial(serving.serve, parsed.kind, config, load, parsed.journal)
    return Supervisor(listening, workers, config.server.watchdog, Doors(workers, status)).run(serve)


def _check(config: ReaperConfig, directory: str | None) -> None:
    """Refuse what cannot work before any worker starts. Raises ConfigError."""
    tls_context(config)
    if config.reaper.pressure and importlib.util.find_spec("psutil") is None:
        raise ConfigError("--pressure needs psutil: pip install 'idle-reaper[pressure]'")
    if directory is not None:
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            importlib.import_module("pyarrow")
        except OSError as error:
            raise ConfigError(f"--journal {directory}: cannot be made: {error.strerror}") from error
        except ImportError:
            raise ConfigError(
                "--journal needs pyarrow: pip install 'idle-reaper[pipeline]'"
            ) from None


if __name__ == "__main__":
    sys.exit(main())
