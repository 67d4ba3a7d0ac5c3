from __future__ import annotations

import sys

import cherrypy
from wsgi import app  # type: ignore[import-not-found]

cherrypy.tree.graft(app, "/")
cherrypy.config.update({"server.socket_host": "127.0.0.1", "server.socket_port": int(sys.argv[1])})
cherrypy.engine.signals.subscribe()
cherrypy.engine.start()
cherrypy.engine.block()
