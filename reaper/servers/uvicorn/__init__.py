"""uvicorn's protocols, guarded against every kind of idleness:
`uvicorn app:app --http reaper.uvicorn:HttpTools`.

The rule of this room: *uvicorn is not patched, and asked as little as possible*. The
names of uvicorn's that are used here are listed in `names.py`; a version without one of
them is refused in one line. Nothing in this room keeps a copy of what uvicorn knows:
the phase of a connection is derived from uvicorn's own fields whenever it is needed.

Which object is the protocol now
--------------------------------

uvicorn calls its protocol class once per connection. Ours, `HttpTools` or `H11`,
answers with another object (`GuardedHttp.__new__` in `http.py`), because a silent
connection need not cost a parser and a flow control. From then on the protocol of the
transport changes like this:

                  first byte                          Upgrade: websocket
                  wake()                              handle_websocket_upgrade()
    accept -> IdleProtocol -------> HttpTools or H11 -------------------> GuardedTunnel
              idle.py     <-------  http.py                               tunnel.py
                  rests(), when nothing has moved
                  for REST_AFTER (1 s) since the last answer

`transport.get_protocol()` is always the protocol in force. uvicorn's list of
connections (`ServerState.connections`) has that one, and no other. So a stop reaches
it: `shutdown()` of an `IdleProtocol` wakes uvicorn's protocol first. While a TLS
handshake goes on no connection is made yet, and a stop does not wait for it; from
CPython 3.12 on it does, for 3 s at most (`asyncio.tls`).

So what the class returns is no `HttpTools` or `H11` before the first byte, and need not
be the protocol a second later. A program that makes a protocol itself and sets a field
of uvicorn's on it, as one test of uvicorn's does with `ws_protocol_class`, meets an
`IdleProtocol` without that field. That could only be had by a protocol of uvicorn's for
every silent connection, and a silent connection that costs nothing of uvicorn's is what
this room is for. What holds for all connections of a server is set on its `Config`, as
uvicorn's command line does.

Who holds the lease
-------------------

The object that is in force has the lease of the connection (`Guarded.lease` in
`base.py`). When another takes its place, `take_over` or `rest` registers a lease of its
own that continues the silence of the old one (`since=`), and then `hand_over` ends the
old one: the change is no activity. The lease of the maximum age goes from one to the
next in an `Age`, which knows whose it is.

What wakes it
-------------

- Bytes from the client: the event loop calls `data_received`. An `IdleProtocol` makes
  uvicorn's protocol, gives it the connection and the bytes, and is freed.
- The end of a response: uvicorn sets its keep-alive timer, by `loop.call_later`. The
  loop that it was given is a `Timerless` (`shared.py`), which sets none and calls the
  connection's `timeout_keep_alive_handler` at once; ours touches the lease: one store.
- The driver, when the lease is due: `pardon` compares the phase that the lease is for
  with the phase that holds now. An `HttpTools` derives that from uvicorn's fields; an
  `IdleProtocol` is in the phase of its lease. A request in flight is found out here,
  once per timeout, and not noted once per request.
- The sweep, several times per tick, and only while the client is in the middle of
  something: half a head, half a body, an answer that it does not take. Only then a
  `Waiting` with an `IdlePolicy` hangs on the connection (`base.py`), which knows the
  timeout of each phase and the least rates.
- One timer per second at most for all connections that have gone idle: it calls
  `rests`.

What closes a keep-alive connection
-----------------------------------

The driver does, when the lease is due by `timeouts.keep_alive`, `pardon` does not spare
the connection, and no byte of it waits in the kernel: it calls `Guarded.reap`
(`base.py`), which has the transport closed (`reaper/asyncio/closing.py`). By then the
protocol is an `IdleProtocol`; it is still an `HttpTools` or `H11` only if the timeout
is shorter than the one to two seconds after which a connection rests. uvicorn's own
keep-alive timer is never set.

HTTP/2 is in `http2.py`.

To read it: `base.py` (what all three have in common), `idle.py`, `http.py`,
`tunnel.py`; `shared.py` is what the connections of one server share, and `answers.py`
what stands between uvicorn and the application.
"""
