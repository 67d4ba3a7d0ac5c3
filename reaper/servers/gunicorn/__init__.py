"""gunicorn's workers, guarded: `gunicorn -k reaper.gunicorn.ASGIWorker`,
`ThreadWorker`, `UvicornWorker`.

names           the private names of gunicorn's that are used; `UvicornWorker` needs
                those of `servers.uvicorn.names`
changes         what `reaper run` changes in it: which worker is taken
asgi            the asgi worker, and what one of its connections waits for
http2_asgi      what each of its streams of HTTP/2 waits for
threads         the worker with threads, and what one of its connections waits for
http2_threads   what each of its streams of HTTP/2 waits for
uvicorn         uvicorn's worker
"""
