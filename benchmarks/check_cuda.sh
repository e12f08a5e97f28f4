#!/usr/bin/env bash
# Check the code for CUDA on a machine without a network: tests, then short benchmarks.
#
#   benchmarks/check_cuda.sh pack DIR                 download what the machine lacks (64 MiB)
#   benchmarks/check_cuda.sh run [--dry-run] DIR OUT  install it for this run, and run all steps
#
# The machine has Python 3.12 with pip, torch 2.11, transformers and sentence-transformers. Each step
# has a time limit, all together at most 8 minutes, and the next step runs also if one fails. After
# each step, OUT/summary.json has its exit code (124: the limit was reached), its seconds and the end
# of its output; OUT/*.log has all of the output, and OUT/*.json the figures of the benchmarks. The
# exit code is 1 if a step failed. With --dry-run, nothing is installed, the tests are only collected,
# and the benchmarks run on the CPU, with longer limits.
#
# PYTHON names the interpreter, python3 by default. If CHECK_RUNNER is set, it is a program that gets
# the command of each step as its arguments, instead of the command being run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
output_bytes=4000 # of each step, in the summary

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

# Run a step and record how it ended: NAME SECONDS COMMAND...
step() {
  local name=$1 limit=$2 rc=0 start=$SECONDS
  shift 2
  [ -z "$dry" ] || limit=900
  echo "$name: at most $limit s" >&2
  # shellcheck disable=SC2086  # the runner may have arguments
  timeout --kill-after=2 "$limit" ${CHECK_RUNNER:-} "$@" >"$out/$name.log" 2>&1 || rc=$?
  [ "$rc" = 0 ] || failed=1
  echo "$name: exit code $rc after $((SECONDS - start)) s" >&2
  "$python" - "$out" "$name" "$rc" "$((SECONDS - start))" "$limit" "$output_bytes" <<'PY'
import json, os, sys
from pathlib import Path

out, name, rc, seconds, limit, size = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
path = out / "summary.json"
summary = json.loads(path.read_text()) if path.exists() else {"steps": {}}
tail = (out / f"{name}.log").read_bytes()[-size:].decode(errors="replace")
summary["steps"][name] = {"rc": rc, "seconds": seconds, "limit_s": limit, "output": tail}
(out / "summary.part").write_text(json.dumps(summary, indent=1) + "\n")
os.replace(out / "summary.part", path)
PY
}

pack() {
  [ $# = 1 ] || usage
  cd "$root"
  PYTHONPATH="$root" exec "$python" benchmarks/cuda_wheels.py "$1"
}

run() {
  dry='' failed=''
  if [ "${1:-}" = --dry-run ]; then
    dry=yes
    shift
  fi
  [ $# = 2 ] || usage
  local files tests options=(--quick --device cuda) shape=12x768
  files=$(cd "$1" && pwd)
  mkdir -p "$2"
  out=$(cd "$2" && pwd)
  rm -f "$out/summary.json"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$root"
  mapfile -t tests < <(grep -rl --include='*.py' '^@pytest.mark.gpu' tests)
  export PYTHONPATH="$root:$work/packages" XDG_CACHE_HOME="$work/cache"
  export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
  unset SBERT_SEARCH_DATA # all runs then have the same texts

  if [ -n "$dry" ]; then
    options=(--quick --repeats 1 --device cpu) shape=4x256
  else
    step install 60 "$python" -m pip install --quiet --no-index --no-deps \
      --target "$work/packages" "$files"/*.whl
    # faiss was built for an earlier CUDA, and finds the libcublas of torch here.
    LD_LIBRARY_PATH=$("$python" -c 'import sys; from pathlib import Path
print(*(found.parent for each in sys.path for found in Path(each).glob("nvidia/*/lib/libcublas.so.13")), sep=":")')
    export LD_LIBRARY_PATH
    step machine 30 "$python" -c 'import torch; print(torch.__version__, torch.version.cuda)
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())'
  fi
  step tests 90 "$python" -m pytest -q -m gpu -p no:cacheprovider ${dry:+--collect-only} "${tests[@]}"
  step embedding 120 "$python" benchmarks/bench_embedding_cuda.py "${options[@]}" \
    --vocabulary "$files/vocabulary" --out "$out/embedding.json"
  step pretraining 100 "$python" benchmarks/bench_pretraining.py "${options[@]}" \
    --only "$shape" --out "$out/pretraining.json"
  if [ -n "$dry" ]; then
    step faiss 60 "$python" benchmarks/bench_gpu.py --help
  else
    step faiss 60 "$python" benchmarks/bench_gpu.py --quick --out "$out/faiss.json"
  fi
  exit "${failed:-0}"
}

case "${1:-}" in
  pack | run) "$@" ;;
  *) usage ;;
esac
