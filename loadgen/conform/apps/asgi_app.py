"""What `reaper-loadgen conform` asks for, as an ASGI application.

reaper-loadgen conform --app asgi > conform_app.py
reaper-loadgen conform -- uvicorn conform_app:app --port {port}
"""

import asyncio

EVERY = 0.4
"""Seconds between two events."""


async def app(scope, receive, send):
    """The application."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await websocket(receive, send)
    else:
        await answer(scope, receive, send)


async def lifespan(receive, send):
    """Start and stop, and do nothing for it."""
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def answer(scope, receive, send):
    """A request: what is asked for is in the path, how much of it behind the `?`."""
    path, number = scope["path"], float(scope["query_string"] or 0)
    posted = scope["method"] == "POST"
    if path in ("/slow", "/late"):
        await asyncio.sleep(number)
    body = await read(receive) if posted and path != "/early" else b""
    if path == "/events":
        await pieces(send, [b"data: tick\n\n"] * int(number), EVERY, b"text/event-stream")
    elif path == "/drops":
        await pieces(send, [b"0123456789"] * int(number), 0.004)
    elif path == "/pause":
        await pieces(send, [b"first", b"after"], number)
    elif path == "/some":
        await pieces(send, [bytes(int(number))], 0)
    elif path in ("/echo", "/late"):
        await pieces(send, [body], 0)
    else:
        await pieces(send, [b"hello"], 0)
    if path == "/early":
        await read(receive)


async def read(receive):
    """The whole body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def pieces(send, data, rest, kind=b"text/plain"):
    """Answer with the pieces *data*, *rest* seconds apart."""
    headers = [(b"content-type", kind)]
    if kind == b"text/plain":
        headers.append((b"content-length", str(sum(map(len, data))).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for place, piece in enumerate(data):
        if place:
            await asyncio.sleep(rest)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def websocket(receive, send):
    """Answer with what is sent, and `big` with a million bytes."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "big":
            await send({"type": "websocket.send", "bytes": b"x" * 1_000_000})
        elif message.get("text") is not None:
            await send({"type": "websocket.send", "text": message["text"]})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"]})
