# API, upkeep, Flower and migration: the base package and Flower, without torch.
# Build from the root of the repository: docker build -f docker/api.Dockerfile .
ARG BASE=python:3.12.13-slim-trixie@sha256:57cd7c3a7a273101a6485ba99423ee568157882804b1124b4dd04266317710de

FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv /opt/renderq
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY api api
COPY cli cli
COPY core core
COPY migrations migrations
COPY pipeline pipeline
COPY policy policy
COPY tasks tasks
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/renderq/bin/pip install --disable-pip-version-check --constraint constraints.txt '.[flower]'
# An extra that grew must not bring gigabytes in unseen.
RUN ! /opt/renderq/bin/python -c 'import torch' 2> /dev/null

FROM ${BASE}
RUN groupadd --gid 10001 renderq \
    && useradd --uid 10001 --gid renderq --no-create-home --home-dir /tmp --shell /usr/sbin/nologin renderq
COPY --from=build /opt/renderq /opt/renderq
ENV PATH=/opt/renderq/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RENDERQ_DATA_DIR=/tmp/renderq
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["renderq"]
CMD ["--help"]
