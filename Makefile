# Each target makes what it needs: a virtual environment with the versions of constraints.txt, once.
PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
BIN := $(VENV)/bin
# One more than CI's two cores: some tests wait for a server or a browser.
WORKERS ?= 3
RECIPE ?= reports/demo.toml
INSTALLED := $(VENV)/.installed

.PHONY: help demo report test slow test-gpu lowest census lint bench bench-gpu docker-check demo-models figures readme clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(INSTALLED)  ## Score an encoder, a decoder and a real pretrained model, and ask it word analogies.
	$(BIN)/attngeo inspect demo:minilm
	$(BIN)/attngeo score demo:encoder demo:decoder demo:minilm
	$(BIN)/attngeo analogy demo:minilm

report: $(INSTALLED)  ## Make the report of RECIPE (the embedded models), build/report/index.html.
	$(BIN)/attngeo report "$(RECIPE)" -o build/report

test: $(INSTALLED)  ## Run the tests that are not slow.
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu"

slow: $(INSTALLED)  ## Run the slow tests.
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not gpu"

test-gpu: $(INSTALLED)  ## Run the tests that need a CUDA device; they are skipped without one.
	$(BIN)/python -m pytest -m gpu

lowest: $(LOWEST)/.installed  ## Run the smoke tests with the lowest versions of all libraries but torch.
	$(LOWEST)/bin/python -m pytest tests/smoke

$(LOWEST)/.installed: pyproject.toml constraints.txt tests/support/lowest.py
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tests/support/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable ".[demo]" pytest hypothesis
	touch $@

census: $(INSTALLED)  ## Compare every model type of transformers with what the running model multiplies.
	$(BIN)/python tests/census/defaults.py
	$(BIN)/python tests/census/run.py

lint: $(INSTALLED)  ## Check style, types and which module imports which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports --no-logo

bench: $(INSTALLED)  ## Measure speed and memory against named baselines.
	$(BIN)/python -m pytest tests/benchmarks -s -m "not gpu" --benchmark-only --benchmark-columns=median,rounds

bench-gpu: $(INSTALLED)  ## Measure a layer on a CUDA device, and write reports/gpu.md.
	$(BIN)/python -m pytest tests/benchmarks/test_gpu.py -s -m gpu

docker-check: $(INSTALLED)  ## Check the Dockerfile, and run its build steps in a clean folder.
	$(BIN)/hadolint Dockerfile
	$(BIN)/python tests/support/dockerfile.py

demo-models: $(INSTALLED)  ## Train demo:encoder and demo:decoder again (half an hour on two cores).
	$(BIN)/python reports/demo-models/build.py

figures: $(INSTALLED)  ## Draw the pictures in reports/figures again (needs Chromium).
	PATH="$(abspath $(BIN)):$$PATH" reports/figures.sh

readme: $(INSTALLED)  ## Write the generated parts of the READMEs.
	PYTHONPATH=tests $(BIN)/python tests/support/readme.py

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(LOWEST) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks build *.egg-info
