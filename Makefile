# make demo   set up and run the main job on the embedded profile
# make test   set up and run lint, types, import contract and tests
PYTHON ?= python3
VENV   ?= .venv
PIN    ?= constraints/newest.txt
BIN     = $(VENV)/bin

.PHONY: demo test lint setup setup-dev clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that the build chosen by the constraints file is in place before anything asks for another.
$(VENV)/.core: pyproject.toml $(PIN) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) -e '.[train,serve,scale,llm,dev]'
	touch $@

setup: $(VENV)/.core
setup-dev: $(VENV)/.dev

demo: $(VENV)/.core
	$(BIN)/python -m ranker.taxonomy build
	$(BIN)/python -m ranker.rank --top-k 5 --file docs/samples.txt
	$(BIN)/python -m ranker.submit --config embedded --data esco --out build/submission.zip
	$(BIN)/python -m ranker.submit --validate build/submission.zip

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
