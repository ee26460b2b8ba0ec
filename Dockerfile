# Runs one MCP server.
#
#   docker build -t mrtr-server .
#   docker run -p 8000:8000 -e MRTR_APP=examples.work_items:app mrtr-server
#
# MRTR_APP          the application, as module:name; put your own modules into /app
# MRTR_KEYS         the keys, which all workers and all replicas share: docker run --rm mrtr-server mrtr-server keygen
# MRTR_SHUTDOWN_SECONDS  how many seconds it may take to end; less than the orchestrator waits
# WEB_CONCURRENCY   how many worker processes; more than one need MRTR_KEYS
# MRTR_RUN_...      the other options of mrtr-server run; docs/settings.md has all variables
# HEALTH_PATH       what the health check asks: /health, unless path= of the server or a mount says otherwise
#
# What is to outlive a container goes into /data, which the user may write to:
#
#   docker run -p 8000:8000 -v tools:/data -e MRTR_DATABASE_URL=sqlite:////data/store.db -e MRTR_KEYS=... mrtr-server
#
# A worker serves nothing that could be asked for its health:
#
#   docker run --no-healthcheck -v tools:/data -e ... mrtr-server mrtr-server worker examples.report:app

FROM python:3.13-slim AS build
WORKDIR /source
# What others made, in the versions and with the hashes of the lock files, before what changes more often.
COPY requirements ./requirements
RUN pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
    && python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes --requirement requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY mrtr_server ./mrtr_server
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /venv/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.13-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin server \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data
COPY --from=build /venv /venv
WORKDIR /app
COPY examples ./examples
ENV PATH="/venv/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MRTR_APP=examples.weather:app \
    MRTR_SHUTDOWN_SECONDS=8 \
    WEB_CONCURRENCY=1 \
    HEALTH_PATH=/health
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=2); c.request('GET', os.environ['HEALTH_PATH']); sys.exit(c.getresponse().status != 200)"]
# What still runs six seconds after the container is stopped is cut off, and after eight all is over; Docker waits for ten.
CMD ["mrtr-server", "run", "--host", "0.0.0.0", "--port", "8000"]
