# Every target installs what it needs into $(VENV); nothing outside it is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo smoke test test-slow test-all check format docs bench bench-quick clean

demo: $(VENV)/.local  ## train with turn credit and without, compare on held-out games
	$(BIN)/turncredit demo --overwrite

smoke: $(VENV)/.local  ## the same story in a minute or two
	$(BIN)/turncredit demo --smoke --overwrite

test: $(VENV)/.dev  ## the default suite
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.textworld  ## the slow suite: real TextWorld beside our engine
	$(BIN)/python -m pytest -m slow

test-all: test test-slow

check: $(VENV)/.dev  ## lint, format, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.textworld $(VENV)/.bench  ## ratios against the alternatives, in one run each: 25 minutes
	$(BIN)/python benchmarks/all.py

bench-quick: $(VENV)/.bench  ## a small form of the most telling ones: 3 minutes
	$(BIN)/python benchmarks/all.py --quick

$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.local: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) -e '.[local]'
	touch $@

$(VENV)/.dev: $(VENV)/.local
	$(PIP) --group dev
	touch $@

$(VENV)/.bench: $(VENV)/.local
	$(PIP) --group bench
	$(BIN)/turncredit models get smollm2-135m
	touch $@

$(VENV)/.textworld: $(VENV)/.dev
	$(PIP) -e '.[textworld]'
	touch $@

clean:
	rm -rf $(VENV) site build dist
