# attngeo with its demo model: docker run --rm IMAGE score demo:minilm
FROM python:3.11-slim

WORKDIR /attngeo
# The pinned dependencies first: they change less often than the code.
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY attngeo attngeo
COPY commands commands
RUN pip install --no-cache-dir --constraint constraints.txt --editable ".[demo]"

# Downloads go to a volume, so that they outlive the container: docker run -v ~/.cache/huggingface:/cache …
ENV HF_HOME=/cache
VOLUME /cache
WORKDIR /work
ENTRYPOINT ["attngeo"]
CMD ["--help"]
