# Everything a developer or a new user runs. `make` alone lists the targets.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS ?= train,dgl,bench,table,tensorboard,notebook,dev
MINUTES ?= 10
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
WORKERS ?= $(shell expr $$(nproc) + 1)
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt
NATIVE := $(wildcard samplers/native/* partition/native/* platform/atta/kvstore/native/* platform/atta/daemon/native/*)
FUZZ := $(wildcard tests/fuzz/*.?pp)

# Tests start hundreds of processes: each would compile all of Atta again where the environment forbids to keep bytecode.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all coverage lint format protos docs wheel prove-wheel release bench peers exact-layers claims sanitize soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install everything, pinned (at once when nothing changed)
	@echo "== $(VENV) is ready"

$(STAMP): pyproject.toml bench/pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python 3.11, or name one with PYTHON=..." >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "no g++ here: the native kernels need a C++20 compiler" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "== installing the pinned build tools"
	@$(PIP) scikit-build-core setuptools nanobind cmake ninja
	@echo "== installing the pinned dependencies and building Atta (PyTorch is large: from one minute to several)"
	@$(PIP) --no-build-isolation -e ".[$(EXTRAS)]" -e bench
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true # on all cores; some files are no Python 3
	@touch $@

demo: setup ## generate a graph, partition it, train GraphSAGE with 2 daemons and 2 trainers
	@$(BIN)/atta demo

test: setup ## run the tests, one worker more than cores, because tests wait for processes
	@echo "== running the tests (some minutes)"
	@ATTA_SEED=$${ATTA_SEED:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: setup ## run the tests and the long ones as well, random ones with a new seed
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not peer"

coverage: setup ## run the tests and list the modules that they cover to less than 80 % (TESTS=tests/unit: some tests)
	@tools/coverage.sh $(TESTS)

lint: setup ## ruff, mypy --strict, clang-format, generated files up to date
	@echo "== ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy --strict"; tools/typecheck.sh
	@echo "== clang-format"; $(BIN)/clang-format --dry-run -Werror $(NATIVE) $(FUZZ)
	@echo "== generated messages"; tools/generate_protos.sh --check

format: setup ## format Python and C++
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format . ; $(BIN)/clang-format -i $(NATIVE) $(FUZZ)

protos: setup ## regenerate the message classes from protos/atta/v1
	@tools/generate_protos.sh

docs: setup ## build the documentation site in build/docs/VERSION (its tools are installed the first time)
	@$(BIN)/python -c "import furo, myst_parser, sphinx, sphinx_copybutton" 2>/dev/null || \
	  $(PIP) furo myst-parser sphinx sphinx-copybutton
	@$(BIN)/python -m sphinx -q -E -W -n --keep-going -b html -d build/doctrees docs build/docs/$(VERSION)
	@echo '<meta http-equiv="refresh" content="0; url=$(VERSION)/index.html">' >build/docs/index.html
	@echo "== build/docs/index.html"

release: ## make the wheel, the source archive, the list of packages (SBOM) and checksums in dist
	@tools/release.sh $(PYTHON)

wheel: ## build the wheel for this machine in dist, with a manylinux tag and checksums (PYTHON="python3.11 python3.12")
	@tools/wheel.sh $(PYTHON)

prove-wheel: ## try the wheels in dist in fresh environments (PYTHON=...: of several), without a compiler and without torch
	@tools/prove_wheel.sh $(PYTHON)

bench: setup ## measure what bench/results records (takes long; DistDGL as a peer needs root; RECORDS="loader kv": some)
	@$(BIN)/python -m pytest -q -m peer
	@$(BIN)/python -m bench.runs $(RECORDS) $(if $(RUNS),--rounds $(RUNS)) $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

peers: setup ## run test files of PyG or DGL over Atta (FOLDER=... of theirs, JSON=... for a record); it fetches nothing
	@test -n "$(FOLDER)" || { echo "name the folder of a peer's tests: make peers FOLDER=.../test/loader" >&2; exit 2; }
	@$(BIN)/python -m tests.peers $(FOLDER) $(if $(JSON),--json $(JSON))

exact-layers: setup ## try every layer of PyG and DGL on batches and write docs/reference/exact-layers.md
	@$(BIN)/python -m bench.exact_layers

claims: setup ## repeat the claims of the papers that can be shown in minutes
	@$(BIN)/python -m bench.claims

sanitize: setup ## run the kernel tests, damaged frames and busy links under sanitizers
	@tools/sanitize.sh

soak: setup ## repeat the system tests, outages and chaos, each round with another seed, for MINUTES=10
	@tools/soak.sh $(MINUTES)

clean: ## remove everything that can be rebuilt, .venv too
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
