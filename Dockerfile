# syntax=docker/dockerfile:1
# One image for every service; the command picks which:
#
#   docker build -t strata:dev .
#   docker run --rm strata:dev strata-recall
#
# Settings come from STRATA_<SERVICE>_* variables, see docs/configuration.md.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN pip install "uv>=0.9,<1" && uv venv --python "$(command -v python)" /opt/strata
WORKDIR /src
# The dependencies are a separate layer. The lock is used as a constraint: packages that only developers
# need are not installed, and each installed package has the locked version and is checked by its hash.
# The project's own client is installed with the project.
COPY pyproject.toml requirements.lock ./
RUN echo strata-client > /tmp/own && uv pip install --python /opt/strata/bin/python \
    --verify-hashes --excludes /tmp/own --constraint requirements.lock --requirement pyproject.toml
COPY README.md LICENSE ./
COPY clients clients
COPY shared shared
COPY services services
COPY gateway gateway
COPY standalone standalone
RUN uv pip install --python /opt/strata/bin/python --no-deps ./clients/python .
# Arrays that the embedding model computes once per installation; services could not store them there.
RUN /opt/strata/bin/python -m strata.shared.search.embedding.prepare --arrays-only

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="Strata" \
      org.opencontainers.image.description="A server for stateful LLM agents" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 strata \
    && useradd --system --uid 10001 --gid strata --no-create-home --home-dir /tmp strata
COPY --from=build /opt/strata /opt/strata
COPY LICENSE /licenses/LICENSE
# A service that listens on the loopback address of its container cannot be reached.
ENV PATH="/opt/strata/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    STRATA_GATEWAY_HOST=0.0.0.0 \
    STRATA_AGENT_LOOP_HOST=0.0.0.0 \
    STRATA_CORE_MEMORY_HOST=0.0.0.0 \
    STRATA_RECALL_HOST=0.0.0.0 \
    STRATA_ARCHIVAL_HOST=0.0.0.0 \
    STRATA_TOOL_EXECUTION_HOST=0.0.0.0
# gateway, agent_loop, core_memory, recall, archival, tool_execution.
EXPOSE 7600 7601 7602 7603 7604 7605 7680
# Services write only to /tmp, so the root file system may be read-only.
USER 10001:10001
WORKDIR /tmp
CMD ["strata", "--help"]
