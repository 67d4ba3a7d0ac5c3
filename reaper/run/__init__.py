"""`reaper run -- COMMAND`: the servers that a program starts, guarded without a change to it.

One rule: *the program is what it was*: its process, its signals, its exit status, its output are
its own.

Read in this order:

    command     flags in, an environment out; then the command takes this process's place
    hook/       the folder that PYTHONPATH names: Python imports its `sitecustomize` at every start
    hooks       calls us back when a program imports a server
    servers     which servers there are, what is changed in each, and with which versions that was tested
    phases      how a server that has no door for us is asked whose turn it is
    report      what was guarded, said to the watcher, or on stderr where there is none
    watcher     attaches to what listens and is guarded by nothing
"""
