# Every target sets up its environment by itself and reuses it while pyproject.toml and the pins are unchanged.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_STAMP := .venv/.demo-installed
FRAMEWORKS := .venv-frameworks/bin
FRAMEWORKS_STAMP := .venv-frameworks/.installed
CONSTRAINTS := tests/constraints.txt
FRAMEWORKS_CONSTRAINTS := tests/frameworks/constraints.txt
# In CI the order of the tests is the same each time, elsewhere a new one.
ORDER := $(if $(CI),--randomly-seed=1)

# The live tests start hundreds of processes: without bytecode each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
# As `gridchase` does for itself: threads that spin between small matrices take the cores from other tests.
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-unit test-live test-page frameworks test-frameworks test-frameworks-all test-newest explore compare-times pins frameworks-matrix campaign sbom hostile check check-types check-others docs format dist clean

# Of the environment only what the demo needs, where there is none yet.
demo: $(or $(wildcard $(STAMP)),$(DEMO_STAMP))
	$(BIN)/gridchase demo
	@echo 'Here, `gridchase` is $(BIN)/gridchase.'

# The first run is bound by the cores; its temporary files are in memory where it can be: ext4 goes to the disk for each
# state file that is replaced. Live tests mostly wait, for conditions and never for seconds: six at a time.
MEMORY := $(shell test "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 1000000 2>/dev/null && echo /dev/shm)
test: test-unit
	$(MAKE) test-live
test-unit: $(STAMP)
	$(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest -m 'not live' -n auto --dist worksteal $(ORDER)
test-live: $(STAMP)
	$(BIN)/python -m tests.second_try -m 'live and not further' -n 6 --dist worksteal $(ORDER)

# The page in a browser, the whole: each page on each screen, in each theme, on paper, and what takes minutes to happen.
# It wants chromium, and axe-core: `npm install --no-save axe-core`.
test-page: $(STAMP)
	$(BIN)/python -m pytest tests/live/page -n 2 --dist worksteal $(ORDER)

# The real frameworks, in an environment of their own: each framework, launcher and kind of training once, or all.
COMPARES_TIMES := tests/frameworks/test_up_beside_examples.py tests/frameworks/test_rates.py
TEST_FRAMEWORKS := $(FRAMEWORKS)/python -m tests.second_try tests/frameworks tests/test_pins.py -n 3 --dist worksteal $(COMPARES_TIMES:%=--ignore %)
frameworks: $(FRAMEWORKS_STAMP)
test-frameworks: $(FRAMEWORKS_STAMP)
	$(TEST_FRAMEWORKS) -m 'not further'
test-frameworks-all: $(FRAMEWORKS_STAMP)
	$(TEST_FRAMEWORKS)

# Trainings whose measured times are compared with their own clock's and the simulation's. It gates nothing: stalls of a
# shared machine count, too. Best on a quiet one.
compare-times: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS)/python -m pytest $(COMPARES_TIMES)

# The same tests with the newest versions that pyproject.toml allows, in environments made anew. It gates nothing.
define newest
	rm -rf build/newest
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$(1)]'
endef
test-newest:
	$(call newest,dev)
	build/newest/bin/python -m pytest -m 'not further' -n auto --dist worksteal --ignore tests/frameworks --ignore tests/test_pins.py
	$(call newest,frameworks)
	build/newest/bin/python -m pytest tests/frameworks -n 3 --dist worksteal $(COMPARES_TIMES:%=--ignore %)
	rm -rf build/newest

# New random examples and schedules of faults for ten minutes; a failure's last line is the command that repeats it.
EXPLORE_S := 600
explore: $(STAMP)
	$(BIN)/python -m tests.explore $(EXPLORE_S)

# Every framework, launcher and kind of training beside its own count; makes the table in docs/frameworks-matrix.md.
frameworks-matrix: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS)/python -m tests.frameworks.matrix --write

# 10,000 random schedules of faults on virtual time and 500 with real processes; makes the tables in docs/faults.md.
campaign: $(STAMP)
	$(BIN)/python -m tests.benchmarks.campaign --write

# Ten minutes, best as root: the tenant is then another user than the controller.
hostile: $(STAMP)
	$(BIN)/python -m tests.live.hostile docs/hostile-tenant.md

# The newest versions that pyproject.toml allows, each file with its hashes, and the list of them in CycloneDX. Neither
# says which index they came from.
sbom:
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check pip-tools cyclonedx-bom
	build/sbom/bin/pip-compile --quiet --upgrade --allow-unsafe --generate-hashes --strip-extras --extra controller-dependencies --extra policy-dependencies --extra postgres --no-header \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links -o deploy/constraints.txt pyproject.toml
	# Not gridchase itself, which its extras name, with the path of this copy.
	sed -i '/^# WARNING: pip install will require/d; /^# Consider using a hashable URL/d; /^gridchase @ /,+1d' deploy/constraints.txt
	build/sbom/bin/cyclonedx-py requirements --output-reproducible -o build/sbom.json deploy/constraints.txt
	# Without links, which name hosts and change with them.
	$(PYTHON) -c 'import json; bare = lambda part: {key: bare(value) for key, value in part.items() if key != "externalReferences"} if isinstance(part, dict) else [bare(each) for each in part] if isinstance(part, list) else part; json.dump(bare(json.load(open("build/sbom.json"))), open("deploy/sbom.cdx.json", "w"), indent=1)'

# In two parts, of which mypy takes as long as all others together: CI makes them at the same time.
check: check-types check-others
check-types: $(STAMP)
	$(BIN)/mypy
check-others: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

# The documents as a site, in build/site/index.html.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# Pins the newest versions that pyproject.toml allows, for every environment that is made here. Of torch a version, and
# no build: pip takes the small one for CPUs where it is at hand.
TORCH := torch==2.13.0
define pin
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	echo '$(TORCH)' >build/pins/torch.txt
	build/pins/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c build/pins/torch.txt --editable '.[$(1)]'
	build/pins/bin/python -m pip list --disable-pip-version-check --format=freeze --exclude-editable --exclude pip | sed 's/+cpu$$//' >$(2)
	rm -rf build/pins
endef
pins:
	$(call pin,dev,$(CONSTRAINTS))
	$(call pin,frameworks,$(FRAMEWORKS_CONSTRAINTS))

$(DEMO_STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gridchase needs Python 3.11 or newer; set PYTHON=python3.x")'
	@echo 'Installing what the demo needs into .venv: some 150 MB.'
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[controller-dependencies]'
	touch $@

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gridchase needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	# Python compiles what is imported; pip would compile all of it, for longer than the download takes. Constraints in
	# the environment hold for what builds our wheel, too: new versions of pip know the second name.
	PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	touch $@

# Two wheels and the source of both, in dist/.
dist: $(STAMP)
	rm -rf dist build controller/build
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --outdir dist controller
	$(BIN)/twine check --strict dist/*

$(FRAMEWORKS_STAMP): pyproject.toml $(FRAMEWORKS_CONSTRAINTS)
	$(PYTHON) -m venv .venv-frameworks
	PIP_CONSTRAINT=$(FRAMEWORKS_CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(FRAMEWORKS_CONSTRAINTS) $(FRAMEWORKS)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[frameworks]'
	# Compiled once here: of the tests' first processes each would compile the same for itself.
	KERAS_BACKEND=jax $(FRAMEWORKS)/python -W ignore -c 'import torch._dynamo, torch.distributed.run, torch.utils.tensorboard, transformers.trainer, lightning.pytorch, pytorch_lightning, accelerate, keras, flax.nnx, optax, mlflow, wandb, comet_ml, aim, pandas, codecarbon'
	touch $@

clean:
	rm -rf .venv .venv-frameworks build dist controller/build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
