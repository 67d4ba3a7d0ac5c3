"""The names of gunicorn that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import PYTHON, Foreign
from ..http2.names import H2

TESTED = ("27.0.1", "27.0.1")

_STREAM = """
body_complete body_size receive_data reset response_headers_sent send_data state stream_id
"""

CONFIG = Foreign("gunicorn", TESTED, {"gunicorn.config:Config": "=worker_class.fget"})
WORKER = Foreign("gunicorn", TESTED, {"gunicorn.workers.base:Worker": "=init_process"})
ASGI = Foreign(
    "gunicorn",
    TESTED,
    {
        "gunicorn.workers.gasgi:": "ASGIProtocol",
        "gunicorn.workers.gasgi:ASGIWorker": """
            _quick_shutdown _setup_event_loop _shutdown alive asgi cfg handle_exit_signal lifespan log
            loop servers
        """,
        "gunicorn.asgi.protocol:ASGIProtocol": """
            _awaiting_request _body_receiver _callback_parser +_cancel_task_if_pending _check_h1c_protocol_available
            _close_transport _closed _finishing_calls _flow_control _h2_conn _h2_tasks _handle_http2_connection
            _h2c_timer _h2c_undecided_timeout +_keepalive _maybe_resume_reading _serve_http2_request
            _start_http2_stream _websocket _send_response_start +eof_received transport worker
        """,
        "gunicorn.asgi.protocol:BodyReceiver": """
            _closed _complete expect_continue protocol receive request
        """,
        "gunicorn.asgi.protocol:FlowControl": "write_paused",
        "gunicorn.asgi.parser:PythonProtocol": "_buffer",
        "gunicorn.asgi.parser:CallbackRequest": "_expect_100_continue",
        "gunicorn.http2.async_connection:AsyncHTTP2Connection": """
            READ_BUFFER_SIZE _abort_all_streams _closed _handle_request_received _handle_stream_reset
            _signal_window _wait_for_flow_control_window _write_pending_nowait abort_streams_nowait cleanup_stream
            close h2_conn max_concurrent_streams +reader receive_data streams writer
        """,
        "gunicorn.http2.stream:HTTP2Stream": f"""
            {_STREAM} _body_chunks connection pop_chunk response_complete send_headers
        """,
        "gunicorn.http2.stream:StreamState": "CLOSED",
    },
)
THREADS = Foreign(
    "gunicorn",
    TESTED,
    {
        "gunicorn.workers.gthread:ThreadWorker": """
            _cap_keepalive _serve_http2_stream accept alive cfg enqueue_req finish_request
            handle handle_exit handle_h2c_upgrade handle_http2 handle_request init_process
            keepalived_conns load_wsgi log max_keepalived murder_keepalived murder_pending
            nr_conns on_pending_socket_readable pending_conns poller wsgi
        """,
        "gunicorn.workers.gthread:TConn": """
            cfg client +close +init initialized is_http2 parser sock +timeout
        """,
        "gunicorn.http.unreader:Unreader": "+chunk +take_buffered",
        "gunicorn.http.unreader:SocketUnreader": "sock",
        "gunicorn.http.message:Message": "_expected_100_continue",
        "gunicorn.http.wsgi:Response": "+default_headers force_close headers_sent req start_response",
        "gunicorn.http2.connection:HTTP2ServerConnection": """
            READ_BUFFER_SIZE _closed _deferred_events _read_and_process _reset_quietly
            _wait_for_flow_control_window abort_stream cleanup_stream close h2_conn idle_timeout
            is_closed max_concurrent_streams pending_requests pump receive_data sock stream_timeout streams
        """,
        "gunicorn.http2.stream:HTTP2Stream": _STREAM,
        "gunicorn.http2.stream:StreamState": "CLOSED",
        "gunicorn.sock:": "ssl_context",
    },
)
READER = Foreign(PYTHON, ("3.11", "3.14"), {"asyncio.streams:StreamReader": "_buffer"})

NEEDS: dict[str, tuple[Foreign, ...]] = {
    "ASGIWorker": (ASGI, H2, READER),
    "ThreadWorker": (THREADS, H2),
}
"""All that a guarded worker uses; gunicorn is the first."""
