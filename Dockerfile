# Runs one MCP server.
#
#   docker build -t mrtr-server .
#   docker run -p 8000:8000 -e MRTR_APP=examples.work_items:app mrtr-server
#
# MRTR_APP          the application, as module:name; put your own modules into /app
# MRTR_KEYS         the keys, which all workers and all replicas share: docker run --rm mrtr-server mrtr-server keygen
# MRTR_SHUTDOWN_SECONDS  how many seconds it may take to end; less than the orchestrator waits
# WEB_CONCURRENCY   how many worker processes; more than one need MRTR_KEYS

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY mrtr_server ./mrtr_server
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir ".[fast,schemas,postgres]"

FROM python:3.13-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin server
COPY --from=build /venv /venv
WORKDIR /app
COPY examples ./examples
ENV PATH="/venv/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MRTR_APP=examples.weather:app \
    MRTR_SHUTDOWN_SECONDS=8 \
    WEB_CONCURRENCY=1
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8000), 2).close()"]
# What still runs six seconds after the container is stopped is cut off, and after eight all is over; Docker waits for ten.
CMD ["sh", "-c", "exec uvicorn \"$MRTR_APP\" --host 0.0.0.0 --port 8000 --timeout-graceful-shutdown 7"]
