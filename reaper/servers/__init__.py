"""Servers of other packages, guarded: a room for each. A server is imported only if you
ask for it.

In a room:

    card            all that there is to say of the server: its kinds, what acts in
                    each, names and modules, its page; tables and lists are made of it
    names           the private names of the server that are used, and its tested
                    versions
    changes         what `reaper run` changes in it; imports nothing of the server
    phases          what a connection waits for: a class that derives from
                    `driver.served.Served`; where the server is derived from, it is in
                    the file of what is derived, such as aiohttp's `server`
    http2           the same of each stream of HTTP/2

All rooms share what lies beside them, and none knows another:

    cards           finds the card of each room
    guest           what a card says, and a guest: what is changed, in which versions,
                    and by which names
    abilities       what a guard can do in a server, and the settings that act by it
    readers         who reads the settings beside the servers of others
    pages           the tables of the pages, written from the cards
    plain           a server that speaks no HTTP
    factories       a server that gives asyncio a protocol factory
    http2           streams of HTTP/2
    streams         answers without an end, told when the server stops
    turns           at which instant each of them is told
    pings           a comment into those that are quiet
    abandoned       requests whose clients are gone
    configured      what each reads from the settings
    goodbye         `reaper.stopping()` becomes true
    workers,        the processes of one server, and what they count
    metrics
"""
