"""Django in one file: `python django_app.py runserver 127.0.0.1:PORT`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import re_path

SLOW = float(os.environ.get("SLOW", "1"))


def halves() -> Iterator[bytes]:
    yield b"first"
    time.sleep(SLOW)
    yield b"last"


def answer(request: HttpRequest, path: str) -> HttpResponse | StreamingHttpResponse:
    if path == "pause":
        return StreamingHttpResponse(halves(), headers={"Content-Length": "9"})
    if path == "slow":
        time.sleep(SLOW)
    return HttpResponse(b"ok")


urlpatterns = [re_path("^(.*)$", answer)]

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DEBUG=True, SECRET_KEY="x")
    execute_from_command_line(sys.argv)
