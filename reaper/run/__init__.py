"""`reaper run -- COMMAND`: the servers that a program starts, guarded without a change
to it.

One rule: *a guest changes nothing but what it closes*. The program has its process, its
signals, its exit status, its descriptors and its output for itself; each module says at
its top what it may change all the same. `tests/run/test_bare.py` compares a command
with the same command in here.

How does it reach a worker that gunicorn forks? Nothing is injected into a running
process:

    1. command      puts the folder hook/ on PYTHONPATH and the limits into REAPER_*,
                    and becomes COMMAND by execve(2). Whatever COMMAND starts inherits
                    both.
    2. hook/        Python imports `sitecustomize` of that folder when it starts, before
                    a line of gunicorn. It puts a finder before the others on
                    `sys.meta_path`, which knows the names of the servers' modules, and
                    makes way for the program's own.
    3. hooks        gunicorn imports `gunicorn.config`: the finder imports the rest of
                    this room and has it called back when that module is loaded.
    4. servers      gunicorn's card lists what is changed in which module: here
                    `servers.gunicorn.changes` changes `Config.worker_class` and
                    `Worker.init_process`, in the master.
    5. fork(2)      a worker that the master forks has the changed class already. (A
                    worker that is started anew, as uvicorn's are, is a Python that
                    begins at 2.)
    6. report       in the worker, `init_process` says which sockets are guarded, by
                    which limits.
    7. channel      carries that to the watcher, without ever waiting.

Beside COMMAND there is the watcher, a process of its own:

    apart           starts it, so that COMMAND does not notice it, and ends it
    watcher         waits for what COMMAND listens on. What nobody has spoken for is
                    watched from outside, by `reaper.attach`: so are programs in other
                    languages
    voice           prints its lines on COMMAND's stderr without holding that open

`explain` is `--explain`. How a server is guarded is no part of this room: that is
`reaper.servers`, a room for each.
"""
