# A worker: the extra `worker` on a CUDA base. Build from the root of the repository.
#   GPU: docker build -f docker/worker.Dockerfile .
#   CPU: docker build -f docker/worker.Dockerfile --build-arg BASE=ubuntu:24.04 --build-arg TORCH_INDEX=INDEX .
# torch brings its own CUDA libraries; the base says which drivers will do. INDEX is PyTorch's index of the
# builds without CUDA; without it the CPU image has the CUDA build, which works and is 3 GB larger.
ARG BASE=nvidia/cuda:13.0.3-base-ubuntu24.04@sha256:7c7413a56200486f71f181cad9310f6fd31b6bb21816ade15fc9c1e1e927a5c1

FROM ${BASE} AS build
ARG TORCH_INDEX=""
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/renderq
COPY constraints.txt ./
# In a layer of its own: a change of our code does not download it again.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/renderq/bin/pip install --disable-pip-version-check \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY cli cli
COPY core core
COPY migrations migrations
COPY pipeline pipeline
COPY policy policy
COPY tasks tasks
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/renderq/bin/pip install --disable-pip-version-check --constraint constraints.txt '.[worker,quantize]'

FROM ${BASE}
# The compilers behind --compile: Triton's needs gcc and Python's headers, the one for CPUs needs g++.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3 python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 renderq \
    && useradd --uid 10001 --gid renderq --no-create-home --home-dir /tmp --shell /usr/sbin/nologin renderq \
    && install --directory --owner renderq --group renderq /cache /models
COPY --from=build /opt/renderq /opt/renderq
# Compiled code is loaded from its folder, so that cannot be /tmp, which allows no execution.
ENV PATH=/opt/renderq/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RENDERQ_DATA_DIR=/tmp/renderq \
    RENDERQ_MODELS_DIR=/models \
    HF_HOME=/models/hub \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    CUDA_CACHE_PATH=/cache/cuda
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["renderq"]
CMD ["--help"]
