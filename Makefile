# Every target sets up what it needs; nothing but Python >= 3.11, a C++ compiler and make is expected.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo serve chat test check prove bench clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

setup: ## install everything into .venv (compiles llama.cpp once per machine, 3 to 9 minutes)
	@test -n "$(PYTHON)" || { echo "[setup] Python 3.11 or newer is needed and none was found. On Debian or Ubuntu: sudo apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) deploy/setup.py

demo: setup ## talk to a small local model in a simulated Feishu group (ARGS="--port 8080 --no-browser")
	@$(BIN)/hearth demo $(ARGS)

serve: setup ## the real thing, with config.toml
	@$(BIN)/hearth serve --config config.toml $(ARGS)

chat: setup ## the same conversation in this terminal
	@$(BIN)/hearth chat $(ARGS)

test: setup ## all tests but the long proofs (under 12 minutes on 2 cores)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

check: setup ## lint, format, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

prove: setup ## the long proofs: make prove ARGS="load crash talk soak fuzz" (all by default; resumable)
	@$(BIN)/python -m tests.prove $(ARGS)

bench: setup ## measure; writes docs/proof/bench.md
	@$(BIN)/python -m tests.bench $(ARGS)

clean: ## remove caches and the virtual environment
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
