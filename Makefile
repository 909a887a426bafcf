# Every target sets up what it needs; nothing but Python >= 3.11, a C++ compiler and make is expected.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
GET_PYTHON = Debian 12, Ubuntu 24.04 or newer: sudo apt install python3 python3-venv. Ubuntu 22.04: sudo apt install python3.11 python3.11-venv
BIN := .venv/bin
ARGS ?=
# With it every start compiles all modules again: seconds each time, and the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 2
# Only what is written behind make counts: other programs have a variable of this name, too.
ifneq ($(origin GPU),command line)
GPU :=
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-cuda setup-vulkan demo serve chat test check prove bench bench-16b gpu-check clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install everything into .venv (compiles llama.cpp once per machine, 3 to 9 minutes; GPU=cuda, vulkan, cuda,vulkan or none)
	@test -n "$(PYTHON)" || { echo "[setup] Python 3.11 or newer is needed and none was found. $(GET_PYTHON)"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "[setup] Python 3.11 or newer is needed, and PYTHON=$(PYTHON) is not that. Without PYTHON, make looks for one. $(GET_PYTHON)"; exit 1; }
	@GPU="$(GPU)" "$(PYTHON)" deploy/setup.py

setup-cuda: ## the same for an NVIDIA card (needs the CUDA toolkit; CUDA_ARCH=86 where the card is not in this machine)
	@$(MAKE) --no-print-directory setup GPU=cuda

setup-vulkan: ## the same for any card by Vulkan (needs the Vulkan SDK)
	@$(MAKE) --no-print-directory setup GPU=vulkan

demo: setup ## talk to a small local model in a simulated Feishu group (ARGS="--port 8080 --no-browser")
	@$(BIN)/hearth demo $(ARGS)

serve: setup ## the real thing, with config.toml
	@$(BIN)/hearth serve --config config.toml $(ARGS)

chat: setup ## the same conversation in this terminal
	@$(BIN)/hearth chat $(ARGS)

test: setup ## all tests but the long proofs (under 12 minutes on 2 cores)
	@$(BIN)/python -m tests -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## lint, format, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

prove: setup ## the long proofs: make prove ARGS="crash death load talk soak fuzz kinds tune doctor" (all by default; resumable)
	@$(BIN)/python -m tests.prove $(ARGS)

bench: setup ## measure; writes docs/proof/bench.md
	@$(BIN)/python -m tests.bench $(ARGS)

bench-16b: setup ## a 16B model of full size with random weights chats with four people; writes docs/proof/bench-16b.md
	@$(BIN)/python -m tests.bench.bench16b $(ARGS)

gpu-check: ## plan, tune, bench and kill tests on a machine with a GPU (under 8 minutes; a dry run where there is none)
	@bash tests/gpu/check.sh $(ARGS)

clean: ## remove caches and the virtual environment
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
