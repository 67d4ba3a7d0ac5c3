"""The walk of the hook of `reaper run`: started as `python -S THIS FILE`, below `reaper
run`.

Without `-S` Python has imported the hook before anybody can count. Here the same module
`site` does that a moment later. Then a uvicorn is served until it listens, and what was
entered is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(out: Path) -> None:
    import importlib.util

    # By its path: `tests` is found once `site` has run.
    spec = importlib.util.spec_from_file_location("steps", HERE / "steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = module.Steps()
    with steps.counted():
        import site

        site.main()
        serve()
    out.write_text("\n".join(steps.files))


def serve() -> None:
    """Import uvicorn, and serve until it listens."""
    import asyncio
    from typing import Any

    import uvicorn

    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks it")

    async def serving() -> None:
        config = uvicorn.Config(application, port=0, lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        server.should_exit = True
        await task

    asyncio.run(serving())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
