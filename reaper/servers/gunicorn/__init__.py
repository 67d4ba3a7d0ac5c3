"""gunicorn's workers, guarded: `gunicorn -k reaper.gunicorn.ASGIWorker`,
`ThreadWorker`, `UvicornWorker`.
"""
