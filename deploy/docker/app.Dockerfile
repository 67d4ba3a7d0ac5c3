# An application in a container, guarded without a change to it: `reaper deploy docker > Dockerfile`, next to app.py and
# requirements.txt. reaper is on no package index yet: its wheel (`make dist` in a checkout) has to lie there, too.
#
#   docker build -t app . && docker run --rm -p 127.0.0.1:8000:8000 app
#
# Our CI has no container builder, so this file is written and checked as text (tests/deploy/test_deploy.py), and not built.
FROM python:3.11-slim

RUN useradd --system --no-create-home app
WORKDIR /srv/app

COPY idle_reaper-*.whl requirements.txt /tmp/
RUN pip install --no-cache-dir /tmp/idle_reaper-*.whl -r /tmp/requirements.txt
COPY . .

USER app
EXPOSE 8000
# Requests in flight are finished: timeouts.drain_delay + timeouts.drain (30s); let `docker stop --time 45` wait for them.
STOPSIGNAL SIGTERM

ENTRYPOINT ["python", "-m", "reaper", "run", "--inside", "--"]
CMD ["python", "-m", "uvicorn", "app:app", "--host", "0.0.0.0", "--port", "8000"]
