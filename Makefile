# make demo   set up and run the main job on the embedded profile
# make test   set up and run lint, types, import contract and tests
# make train-embedded   train the embedded profile from scratch; interrupted, it goes on at the next call
PYTHON ?= python3
VENV   ?= .venv
PIN    ?= constraints/newest.txt
BIN     = $(VENV)/bin
DATA   ?= ../shared/data
TRAIN   = build/train

.PHONY: demo test lint setup setup-dev train-embedded clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that the build chosen by the constraints file is in place before anything asks for another.
$(VENV)/.core: pyproject.toml $(PIN) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(PIN) -e '.[train,serve,scale,llm,flag,int8,gpu,dev]'
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

# A step's target is the last file it writes, so one that was interrupted is run again, and goes on from its cache.
SILVER = $(TRAIN)/silver
TOWER  = $(TRAIN)/embedded/tower
MEMORY = $(TRAIN)/embedded/memory
FUSION = $(TRAIN)/embedded

$(SILVER)/qrels.tsv: | $(VENV)/.core
	$(BIN)/python -m train.labels.silver --sentences $(DATA)/sentences --out $(SILVER)

$(TOWER)/training.json: | $(SILVER)/qrels.tsv
	$(BIN)/python -m train.lanes --config embedded --data $(DATA)/graded --helpers $(SILVER) \
		--oof $(TRAIN)/tuned.npy --out $(TOWER)

$(MEMORY)/memory.json: | $(SILVER)/qrels.tsv
	$(BIN)/python -m train.memory --config embedded --data $(DATA)/graded --helpers $(SILVER) --out $(MEMORY) \
		--oof memory=$(TRAIN)/memory.npy --oof memory_near=$(TRAIN)/memory_near.npy

# Texts without a skill have no out-of-fold scores: the new tower and memory must be in place to score them.
$(FUSION)/README.md: | $(TOWER)/training.json $(MEMORY)/memory.json
	cp $(TOWER)/* checkpoints/embedded/tower/
	cp $(MEMORY)/* checkpoints/embedded/memory/
	$(BIN)/python -m train.fusion --config embedded --data $(DATA)/graded --helpers $(SILVER) \
		--oof tuned=$(TRAIN)/tuned.npy --oof memory=$(TRAIN)/memory.npy --oof memory_near=$(TRAIN)/memory_near.npy \
		--repetitions 1 --members 4 --rounds 200 --override --out $(FUSION)

train-embedded: $(FUSION)/README.md
	cp -R $(FUSION)/. checkpoints/embedded/

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
