"""hypercorn, guarded by `reaper run`, on asyncio and on trio.

changes         what is changed in it: the method that serves each connection
phases          what a connection waits for; HTTP/1, WebSockets, and whether HTTP/2 has
                streams
http2           what each stream of HTTP/2 waits for
application     streams are told when it stops, and requests cancelled whose clients are
                gone
ends            when the tasks of a connection end
trio,           the same on trio, where it differs
trio_application,
trio_overload
"""
