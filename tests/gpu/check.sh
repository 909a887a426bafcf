#!/usr/bin/env bash
# Plan → tune → bench → kill tests on a machine with a GPU, in under 8 minutes; prints one table and writes it to $OUT (or .hearth/gpu).
# Where no GPU answers that this build drives, the same steps run small on the CPU: a dry run, and it says so.
#   tests/gpu/check.sh [--dry] [--limit 12GiB] [--minutes 7.5] [--folder FOLDER]
# PYTHON names another interpreter than .venv's, for machines to which everything was carried (docs/gpu.md).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
if ! "$python" -c 'import llama_cpp, gguf' 2>/dev/null; then
  echo "[gpu-check] $python has no llama_cpp or gguf: run make setup-cuda or make setup-vulkan first, or name an interpreter by PYTHON" >&2
  exit 1
fi
exec "$python" -m tests.gpu.check "$@"
