"""Django (ASGI) in one file, under a guarded uvicorn.

uvicorn examples.django_app:app --http reaper.uvicorn:Auto --lifespan off
"""

from __future__ import annotations

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(
    SECRET_KEY="an example has no secrets", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__
)


async def hello(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"hello": "world"})


urlpatterns = [path("", hello)]
app = get_asgi_application()
