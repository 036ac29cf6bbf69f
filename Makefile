# Every target sets up its environment by itself and reuses it while pyproject.toml is unchanged.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
FRAMEWORKS := .venv-frameworks/bin
FRAMEWORKS_STAMP := .venv-frameworks/.installed

# The live tests start hundreds of processes: without bytecode each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-frameworks frameworks-matrix campaign sbom hostile check docs format dist clean

demo: $(STAMP)
	$(BIN)/gridchase demo

# The first run is bound by the cores. Live tests mostly wait, for conditions and never for seconds: four at a time.
test: $(STAMP)
	$(BIN)/python -m pytest -m 'not live' -n auto --dist worksteal
	$(BIN)/python -m pytest -m live -n 4 --dist worksteal

# The real frameworks, in an environment of their own: torch as the configured index offers it, with all that it brings.
# Nothing else runs beside the trainings whose measured times are compared with the simulation's: stalls would count.
COMPARES_TIMES := tests/frameworks/test_up_beside_examples.py
test-frameworks: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS)/python -m pytest tests/frameworks -n 2 --dist worksteal --ignore $(COMPARES_TIMES)
	$(FRAMEWORKS)/python -m pytest $(COMPARES_TIMES)

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

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

# The API reference, in build/api/index.html.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gridchase needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	# Python compiles what is imported; pip would compile all of it, for longer than the download takes.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	touch $@

# Two wheels and the source of both, in dist/.
dist: $(STAMP)
	rm -rf dist build controller/build
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --outdir dist controller
	$(BIN)/twine check --strict dist/*

$(FRAMEWORKS_STAMP): pyproject.toml
	$(PYTHON) -m venv .venv-frameworks
	$(FRAMEWORKS)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[frameworks]'
	touch $@

clean:
	rm -rf .venv .venv-frameworks build dist controller/build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
