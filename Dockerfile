# syntax=docker/dockerfile:1
# attngeo with its demo models, for CPUs:
#   docker build --tag attngeo .
#   docker run --rm --volume "$PWD:/work" --volume attngeo-cache:/cache attngeo score demo:minilm --output scores.csv
# For NVIDIA GPUs, with the index of a CUDA build of torch, and --gpus all where it runs:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 --tag attngeo:cuda .

FROM python:3.11-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/attngeo
ENV PATH="/opt/attngeo/bin:$PATH"
WORKDIR /src
# What changes least comes first, so that a change of code does not install everything again.
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --index-url "$TORCH_INDEX" torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY attngeo attngeo
COPY commands commands
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ".[all,demo]"

FROM python:3.11-slim
COPY --from=build /opt/attngeo /opt/attngeo
# Not root; downloads and scores go to a volume, so that they outlive the container.
RUN useradd --create-home --uid 1000 attngeo \
    && mkdir /cache /work \
    && chown 1000:1000 /cache /work
ENV PATH="/opt/attngeo/bin:$PATH" HF_HOME=/cache ATTNGEO_CACHE=/cache/attngeo
VOLUME /cache
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["attngeo"]
CMD ["--help"]
