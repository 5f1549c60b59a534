"""The OpenAI-compatible HTTP API: Starlette's router, our own SSE, uvicorn."""

from cadenza.service.http.app import build_app
from cadenza.service.http.server import HttpServer

__all__ = ["HttpServer", "build_app"]
