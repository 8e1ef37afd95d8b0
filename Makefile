# Every target installs what it needs into $(VENV); nothing outside it is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo smoke test test-slow test-hosted test-kills test-engine test-all check format docs bench bench-quick clean

demo: $(VENV)/.local  ## train with turn credit and without, compare on held-out games
	$(BIN)/turncredit demo --overwrite

smoke: $(VENV)/.local  ## the same story in a minute or two
	$(BIN)/turncredit demo --smoke --overwrite

test: $(VENV)/.dev  ## the default suite
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.textworld  ## the slow suite: real TextWorld beside our engine
	$(BIN)/python -m pytest -m slow

# The genuine clients of hosted trainers, each against our server of its protocol. A client has a
# small environment of its own on top of $(VENV): versions of one SDK exclude each other.
CLIENTS := pytrio-0.2.8 pytrio-0.2.9 tinker-0.25.0 tinker-0.38.0

test-hosted: $(CLIENTS:%=test-hosted-%)  ## hosted trainers, every supported client version

test-hosted-%: $(VENV)/clients/%.ok
	TURNCREDIT_CLIENT=$* $(VENV)/clients/$*/bin/python -m pytest -n 2 --dist worksteal \
	    -m "not gpu and not live and not engine and not kills" tests/hosted

# Half an hour: trainers and services that die fifty times each, or among faults; signals and crashes
# at every point.
test-kills: $(VENV)/clients/pytrio-0.2.9.ok $(VENV)/clients/tinker-0.38.0.ok
	$(VENV)/clients/pytrio-0.2.9/bin/python -m pytest -m kills tests/hosted
	$(VENV)/clients/tinker-0.38.0/bin/python -m pytest -m kills tests/hosted

test-engine: $(VENV)/.engine  ## a real third-party server (SkyRL): gigabytes to install, minutes to run
	$(ENGINE)/bin/python -m pytest -m engine tests/engine

test-all: test test-slow test-hosted test-kills

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

bench: $(VENV)/.textworld $(VENV)/.bench $(VENV)/clients/pytrio-0.2.9.ok $(VENV)/clients/tinker-0.38.0.ok  ## ratios against the alternatives, in one run each: 25 minutes
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

# A path file makes the packages of $(VENV) visible; what a client needs of another version it gets.
$(VENV)/clients/%.ok: $(VENV)/.dev
	rm -rf $(VENV)/clients/$*
	$(BIN)/python -m venv --without-pip $(VENV)/clients/$*
	$(BIN)/python -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
	    > $$($(VENV)/clients/$*/bin/python -c 'import site; print(site.getsitepackages()[0])')/parent.pth
	$(BIN)/python -m pip --python $(VENV)/clients/$*/bin/python install --quiet \
	    --disable-pip-version-check -c constraints.txt sniffio $(subst pytrio-,pytrio==,$(subst tinker-,tinker==,$*))
	touch $@

ENGINE := $(abspath $(VENV))-engine

# SkyRL names Python 3.12 and pins the client's version; what its wheel leaves out is named here.
$(VENV)/.engine: $(VENV)/.pip pyproject.toml constraints.txt
	$(BIN)/python -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    'skyrl[tinker,jax]==0.3.0' aiohttp -e '.[local,tinker]' --group dev
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --ignore-requires-python skyrl==0.4.0 tinker==0.25.0
	touch $@

clean:
	rm -rf $(VENV) site build dist
