# Two commands do everything: `make demo` runs the main job, `make test` runs the tests of every behaviour. Both set themselves up.
PYTHON ?= python3
VENV ?= .venv
CAPTURE_VENV ?= .venv-capture
BIN := $(VENV)/bin
HOME_FOLDER ?= traceviz_home
# Without bytecode on disk each of the many processes of the tests would compile every module anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo dev test test-long promises tracked lint types imports scripts dependencies check release-check lock clean capture-environment

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(VENV)/.ready ## create the environment with the pinned dependencies

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup ## simulate a small training job and take it the whole way
	$(BIN)/traceviz demo --home $(HOME_FOLDER)

dev: setup ## open the Dagster UI on this home
	$(BIN)/traceviz dev --home $(HOME_FOLDER)

test: setup ## the tests of every behaviour
	$(PYTEST) -m "not long"

test-long: setup ## kills, faulty places, daemons, real training, every page in the browser; SHARE=2/4: a quarter of it
	$(PYTEST) -m long $(if $(SHARE),--share=$(SHARE))

promises: setup ## keep what this version promises as docs/promised.txt, and show what came and went
	TRACEVIZ_WRITE_PROMISES=1 $(BIN)/python -m pytest tests/commands/test_promises.py
	git --no-pager diff --unified=0 docs/promised.txt

tracked: setup ## the speed figures, against the kept ones
	$(BIN)/python -m benchmarks.tracked

lint: setup ## linter and formatter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## type checker
	$(BIN)/mypy

imports: setup ## the rules on which module may import which
	$(BIN)/lint-imports

scripts: setup ## types, lint and layout of the report's own scripts (installs the tools with npm)
	$(BIN)/python .ci/page/check.py

dependencies: setup ## licences and known vulnerabilities of the locked packages
	$(BIN)/python .ci/dependencies.py

release-check: check ## what a release needs besides .ci/run
	$(BIN)/python .ci/dependencies.py --release
	$(MAKE) test-long SHARE=

check: lint types imports scripts dependencies ## everything but the tests
	$(BIN)/dagster definitions validate -w workspace.yaml

capture-environment: ## torch and Megatron-core for the tests of the capture plugin in real training
	bash tests/capture/environment.sh $(CAPTURE_VENV) $(PYTHON)

lock: ## pin the dependencies anew (needs uv)
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --no-strip-extras --python-version 3.11 \
		pyproject.toml --group dev --group build -o requirements.lock

clean: ## remove what was built
	rm -rf $(VENV) $(CAPTURE_VENV) .ci/page/node_modules dist build .mypy_cache .ruff_cache .hypothesis
