"""Programs that others wrote, each started stock and below `reaper run`: what changes
for clients.

One rule: *the table of docs/run.md is what this room measured*; no figure there is
typed by hand. They are no kinds of `loadgen.conform`, though its clients play them:
half of the programs speak no HTTP, and what is tried is what `reaper run` does around a
process: its stop, its reload, its exit status.

    asks        what is sent to a program, by protocol
    declared    the programs: how each is installed, started, asked, stopped and
                reloaded
    installing  a venv for each, below out/programs/
    trial       one program, started one way, and what its clients saw
    table       the results as a table, and what became worse
    __main__    the command
"""
