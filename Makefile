# `make help` lists the targets. Each one installs what it needs.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
UV     := $(VENV)/bin/uv
RUN_ENV := $(VENV)/.run-ready
DEV_ENV := $(VENV)/.dev-ready
# One test process more than there are cores, because tests also wait for servers; at most four.
JOBS   ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -gt 3 ] && echo 4 || echo $$((n + 1)))
UI_ENV := ui/node_modules/.ready
VSCODE_ENV := editors/vscode/node_modules/.ready

# Processes of the tests read the bytecode that others have written.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-plugins test-pythons coverage check fmt ui vscode screenshots bench bench-peers docs simulate mutate chaos nodes load fuzz sbom audit image cluster lock clean simulate-nodes

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "NoETL needs Python 3.11 or newer ($(PYTHON) is older); set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# uv installs in seconds what pip installs in minutes; where it cannot be had, pip does the same work.
# Bytecode is written now, so that the first run is as fast as the second.
$(RUN_ENV): $(PY) requirements.lock pyproject.toml
	@echo "setting up $(VENV) ..." >&2
	@$(PY) -m pip install -q --disable-pip-version-check uv 2>/dev/null || true
	@if [ -x $(UV) ]; then $(UV) pip install -q --python $(PY) --compile-bytecode --require-hashes -r requirements.lock && $(UV) pip install -q --python $(PY) --no-deps -e . ; \
	 else $(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock && $(PY) -m pip install -q --disable-pip-version-check --no-deps -e . ; fi
	@$(PY) -m compileall -q noetl
	@touch $@

$(DEV_ENV): $(RUN_ENV) requirements-dev.lock
	@echo "setting up $(VENV) for development ..." >&2
	@if [ -x $(UV) ]; then $(UV) pip install -q --python $(PY) --require-hashes -r requirements-dev.lock ; \
	 else $(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock ; fi
	@touch $@

run: $(RUN_ENV) ## run the quickstart playbook on the embedded engine
	@$(PY) examples/quickstart/run.py

test: $(DEV_ENV) $(UI_ENV) $(VSCODE_ENV) ## the whole test suite; starts and stops its own Postgres, NATS and S3 servers, and a browser
	@.ci/browser
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not serial and not transcript"
	@$(PY) -m pytest -m serial $$(grep -rlw --include='test_*.py' mark.serial tests)

test-fast: $(DEV_ENV) ## unit tests, without servers and browser
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not integration and not slow and not serial"

# Each plug-in has an environment of its own; PLUGINS="redis mysql" runs some of them.
PLUGINS ?= $(sort $(notdir $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))))
test-plugins: $(RUN_ENV) ## the tests of the plug-ins, each installed with noetl into its own environment
	@for name in $(PLUGINS); do echo "plugins/$$name"; $(PY) plugins/run_tests.py $$name || exit 1; done

test-pythons: $(DEV_ENV) ## install the built wheel with pip for every Python 3.11 to 3.14 of this machine, and use it
	@NOETL_PYTHONS=1 $(PY) -m pytest tests/install/test_python_versions.py

coverage: $(DEV_ENV) $(UI_ENV) $(VSCODE_ENV) ## the suite with statement coverage, also of server and worker processes; fails below the floor
	@.ci/browser
	@rm -f .coverage .coverage.*
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not serial and not transcript" --cov --cov-report=
	@$(VENV)/bin/coverage combine -q --append 2>/dev/null; $(PY) .ci/coverage_floor.py

check: $(DEV_ENV) $(UI_ENV) $(VSCODE_ENV) ## format, lint, types, import contracts, and that the built page is what its sources give
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@PY=$(PY) .ci/node npm run -s types
	@PY=$(PY) .ci/node node build.mjs --check
	@FOLDER=editors/vscode PY=$(PY) .ci/node npm run -s types

fmt: $(DEV_ENV) ## format the code
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

$(UI_ENV): ui/package-lock.json | $(DEV_ENV)
	@PY=$(PY) .ci/node npm ci --silent --no-progress
	@touch $@

$(VSCODE_ENV): editors/vscode/package-lock.json | $(DEV_ENV)
	@FOLDER=editors/vscode PY=$(PY) .ci/node npm ci --silent --no-progress
	@touch $@

vscode: $(VSCODE_ENV) ## build the extension for VS Code into editors/vscode/dist, and test it with the language server
	@$(PY) -m pytest -q tests/cli/integrations/test_vscode.py

ui: $(UI_ENV) ## build the web page into noetl/ui
	@PY=$(PY) .ci/node node build.mjs

screenshots: $(DEV_ENV) $(UI_ENV) ## take the pictures of the documentation again
	@.ci/browser
	@NOETL_SCREENSHOTS=1 $(PY) -m pytest -q tests/ui/test_screenshots.py tests/ui/sections/test_screenshots.py tests/ui/sections/test_gallery.py

bench: $(DEV_ENV) ## measure, and write docs/benchmarks.md
	@$(PY) -m bench

bench-peers: $(DEV_ENV) ## the same, beside other engines in environments of their own
	@$(PY) -m bench --peers

docs: $(DEV_ENV) ## write the generated pages, and build the site into build/site
	@$(PY) -m docs.generate
	@$(PY) tests/core/engine/state_machines.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

.PHONY: docs-test docs-publish
docs-test: $(DEV_ENV) ## type every command of README, tutorial, how-to and comparison pages with the built wheel; run the cookbook
	@$(PY) -m pytest -m "transcript or not transcript" tests/pages

docs-publish: $(DEV_ENV) ## commit the site of this version to the local branch gh-pages, as `latest`
	@PATH=$(abspath $(VENV))/bin:$$PATH NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $$($(PY) -c 'import noetl; print(".".join(noetl.__version__.split(".")[:2]))') latest

simulate: $(DEV_ENV) ## ten thousand seeds of simulated faults
	@$(PY) -m tests.simulation --seeds 10000

simulate-nodes: $(DEV_ENV) ## ten thousand workers and a million executions in virtual time
	@$(PY) -m tests.simulation.many_nodes

mutate: $(DEV_ENV) ## change the engine, the pipeline and the server in one place at a time; writes docs/development/mutants.md
	@$(PY) -m tests.mutation

fuzz: $(DEV_ENV) ## fuzz every parser, and send thousands of odd requests made from the OpenAPI document
	@$(PY) -m tests.security.fuzz_parsers
	@$(PY) -m tests.server.http.fuzz

chaos: $(DEV_ENV) ## kill, stop and starve a real cluster; writes docs/reliability.md
	@$(PY) -m chaos chaos

nodes: $(DEV_ENV) ## partition a cluster whose nodes are in network namespaces of their own (needs root); writes docs/reliability.md
	@$(PY) -m chaos nodes

load: $(DEV_ENV) ## overload a real server; writes docs/reliability.md
	@$(PY) -m chaos load

cluster: $(DEV_ENV) ## run a local cluster: two servers, four workers, Postgres, NATS; Ctrl-C stops it
	@$(PY) -m devcluster start

image: ## build the container image with docker or podman, and run a playbook with a server and a worker of it
	@sh deploy/docker/check-image.sh

sbom: $(DEV_ENV) ## write sbom.json, the locked dependencies as a CycloneDX document
	@$(PY) deploy/sbom.py requirements.lock > sbom.json

audit: $(DEV_ENV) ## compare the locked dependencies with published advisories; ADVISORIES=all.zip works without a network
	@$(PY) deploy/audit.py requirements.lock $(if $(ADVISORIES),--advisories $(ADVISORIES))

lock: $(DEV_ENV) ## renew the hash-locked requirements
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra dev pyproject.toml -c requirements.lock -o requirements-dev.lock

clean: ## remove the environment and the caches
	@rm -rf $(VENV) ui/node_modules editors/vscode/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
