"""Where HTTP meets the engine: one edge for ASGI, one for WSGI; they really differ."""
