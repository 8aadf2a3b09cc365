# The service in a container: docker build -t graded-ranker . && docker run --rm -p 8000:8000 graded-ranker
# Everything is built in the first stage; the second holds the virtual environment and the built taxonomy only.
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
WORKDIR /src
RUN python -m venv /opt/ranker
ENV PATH=/opt/ranker/bin:$PATH
# The CPU build of torch, alone in its layer: it is large and seldom changes. Another index can be named for a GPU.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints/newest.txt constraints/newest.txt
RUN pip install --extra-index-url "$TORCH_INDEX" -c constraints/newest.txt torch
COPY . .
RUN pip install -c constraints/newest.txt '.[serve]'
# The taxonomy and whatever else the first answer needs are built here, so that a container needs no network.
ENV RANKER_CACHE=/opt/cache
RUN python -m ranker.taxonomy build && python -m ranker.rank --top-k 1 "weld aluminium frames"

FROM python:3.11-slim-bookworm
# libgomp is LightGBM's OpenMP runtime.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1=12.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home ranker
COPY --from=build /opt/ranker /opt/ranker
COPY --from=build --chown=ranker /opt/cache /opt/cache
ENV PATH=/opt/ranker/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    RANKER_CACHE=/opt/cache \
    RANKER_HOST=0.0.0.0 \
    RANKER_PORT=8000
USER 10001
WORKDIR /opt/cache
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"RANKER_PORT\"]}/health/live', timeout=2)"]
ENTRYPOINT ["python", "-m", "ranker.serve"]
