# Everything a developer or a new user runs. `make` alone lists the targets.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS ?= train,dgl,bench,dev
MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format protos bench sanitize soak clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install everything, pinned (fast when nothing changed)

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard samplers/native/*.cpp samplers/native/*.hpp)
	@echo "== creating $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== installing pinned build tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt scikit-build-core nanobind cmake ninja
	@echo "== building Atta and installing its pinned dependencies (about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

demo: setup ## generate a graph, partition it, train GraphSAGE with 2 daemons and 2 trainers
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/demo.sh

test: setup ## run all tests
	@echo "== running the tests"
	@$(BIN)/python -m pytest

lint: setup ## ruff, mypy --strict, clang-format, generated files up to date
	@echo "== ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy"; tools/typecheck.sh
	@echo "== clang-format"; $(BIN)/clang-format --dry-run -Werror samplers/native/*.cpp samplers/native/*.hpp
	@echo "== generated messages"; tools/generate_protos.sh --check

format: setup ## format Python and C++
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format . ; $(BIN)/clang-format -i samplers/native/*.cpp samplers/native/*.hpp

protos: setup ## regenerate the message classes from protos/atta/v1
	@tools/generate_protos.sh

bench: setup ## measure what bench/results records (needs minutes to hours; peers need root)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bench/run.sh

sanitize: setup ## run the kernel tests under ASan and UBSan
	@tools/sanitize.sh

soak: setup ## repeat the system tests for MINUTES
	@tools/soak.sh $(MINUTES)

clean: ## remove everything that can be rebuilt
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
