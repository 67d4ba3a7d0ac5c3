"""HTTP/2 under a guard: many streams on one connection, and each waits for something
else.

The rule of this package: *a stream is one more thing that is idle by `RULES`*. A stream
whose client is waited for, and the connection between its streams, each have a lease
and an `IdlePolicy` of their own (`waiting.Waiting`), as a connection of HTTP/1.1 has
one. There is no other clock and no other limit. Under uvicorn the connection has the
lease that each of uvicorn's guarded connections has.

One engine (`engine.Engine`) serves every server. It owns the heads of the frames, the
budget of floods, what the connection and each stream wait for, and the goodbye: GOAWAY,
what is waited for, the close. An adapter in the room of its server says where bytes
come in, what a stream waits for, how one is reset and how the connection is closed.

What a connection waits for when its streams wait for different things:

    a header block is not complete    HEADERS, absolute from its first frame. No other
                                      frame may come before its end (RFC 9113 6.10), so
                                      all streams wait.
    it has streams                    IN_FLIGHT: the connection itself is never due.
                                      Each stream has its own phase, and ends alone, by
                                      RST_STREAM.
    it has none                       FIRST_BYTE until the client's preface has come,
                                      and then KEEP_ALIVE, from the end of the last
                                      stream on.

What a stream waits for:

    BODY         the client has yet to send (the rest of) its body, and no answer has
                 begun
    WRITE        bytes are queued for the client, and its window is shut
    TUNNEL       both sides may speak: an answer has begun before the body has ended, or
                 the stream is a WebSocket
    IN_FLIGHT    none of these: the application works, or the server has yet to send
                 what may be sent

Only what moves a stream is activity: bytes of its DATA frames in either direction. A
PING, SETTINGS, PRIORITY, an empty DATA frame, or a WINDOW_UPDATE by which nothing is
sent restart no timeout. Frames that cost the server more than the client, and move
nothing, are bounded in number (`floods.Budget`).

A stream that is due is reset (CANCEL). If it was the last, the client has shown what it
is worth, and the connection goes with it: GOAWAY, then a close. A connection without a
stream that is due is told so by GOAWAY before it is closed: the client knows from it
that no request was lost. While the server works off what came, or the kernel holds
unread bytes of the connection, nothing is due: they may be what is waited for.

What lies below is not looked at here: a client whose kernel takes no bytes at all is
found by the guard of the connection, as with HTTP/1.1.

Read `engine`, `frames`, `waiting`, `floods`, `leaving`; then the adapters. What a
stream waits for is `phase_of_stream` in each; a PING and its like are found by
`frames`, and charged to the budget of `floods`:

    room, file                where bytes come in       where they are charged
    uvicorn/http2             Http2.data_received       Engine.came
    hypercorn/http2           H2Protocol.handle         Engine.came
    gunicorn/http2_asgi       _Reader.read              Engine.came
    gunicorn/http2_threads    _Fed.receive_data         Judge.charge, in the driver's
                                                        thread at its next look
"""

from __future__ import annotations
