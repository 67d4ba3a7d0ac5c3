"""aiohttp's server, guarded: by `reaper.aiohttp.run_app(app)`, or by `reaper run`."""
