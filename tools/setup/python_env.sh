#!/bin/bash
# python_env.sh [libtorch]: makes the Python environment with the pinned torch,
# once for all clones, and links .venv to it. Does nothing if users named their
# own torch. With TORCH=VERSION, it makes an environment with that torch and the
# matching torchvision, and links build/torch-VERSION/venv instead.
#
# With `libtorch`, on a host without a GPU, the environment contains only what
# C++ programs need: torch without most of its CUDA packages. Python can't
# import torch then. A later call without `libtorch` adds the rest.
# docs/dependencies.md says which library needs what.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
scope=${1:-all}

if [ -n "${Torch_DIR:-}" ]; then
  [ -e "$Torch_DIR/TorchConfig.cmake" ] || fail \
    "Torch_DIR names no LibTorch" "a folder with TorchConfig.cmake" \
    "$Torch_DIR" "name LibTorch's share/cmake/Torch, or leave Torch_DIR out"
  exit 0
fi
if [ -n "${LOCKSTEP_PYTHON:-}" ]; then
  "$LOCKSTEP_PYTHON" -c 'import importlib.util as u, sys
sys.exit(not u.find_spec("torch"))' 2>/dev/null || fail \
    "LOCKSTEP_PYTHON has no torch" "a Python that imports torch" \
    "$LOCKSTEP_PYTHON" "install torch there, or leave LOCKSTEP_PYTHON out"
  exit 0
fi

python=${PYTHON:-/usr/bin/python3}
pins=$here/requirements.txt
link=.venv
if [ -n "${TORCH:-}" ]; then
  link=build/torch-$TORCH/venv
  mkdir -p "build/torch-$TORCH"
  sed -E "s/^torch==[^ ]+/torch==$TORCH/; s/^torchvision==[^ ]+/torchvision/" \
    "$pins" >"build/torch-$TORCH/requirements.txt"
  pins=build/torch-$TORCH/requirements.txt
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
version=$("$python" -c 'import sys
print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || fail \
  "no Python" "$python to run" "a failure" "install python3 or set PYTHON="
torch=$(sed -nE 's/^torch==([0-9.]+).*/\1/p' "$pins")
# The interpreter is part of the key, because an environment links to it.
key=$({ readlink -f "$(command -v "$python")"
  grep -oE '^[a-z]+==[^ ]+' "$pins"; } | sha256sum | cut -c1-8)
name=py$version-torch$torch-$(uname -m)-$key
env=$cache/$name
# If root installs a user's build, it uses that user's environment.
linked=$(readlink "$link" || true)
if [ "${linked##*/}" = "$name" ] && [ -x "$linked/bin/python" ]; then
  env=$linked
  cache=${linked%/*}
fi

link() {
  [ "$(readlink "$link" || true)" != "$env" ] || return 0
  if [ -e "$link" ] && [ ! -L "$link" ]; then
    fail "$link is in the way" "a link to $env, or nothing" "a folder" \
      "move it away, or use it with LOCKSTEP_PYTHON=$link/bin/python"
  fi
  ln -sfn "$env" "$link"
  say "$link -> $env"
}

# Marks an environment that has LibTorch, but no torch for Python.
mark=$env/libtorch_only

if [ "$scope" = libtorch ] && wants_cuda; then
  scope=all
fi

# A complete environment is renamed into place, so a folder there is complete.
is_there() {
  [ -x "$env/bin/python" ] && { [ "$scope" = libtorch ] || [ ! -e "$mark" ]; }
}
if is_there; then
  link
  exit 0
fi

mkdir -p "$cache" 2>/dev/null || fail "can't make the cache folder" \
  "to write to $cache" "a refusal" "set XDG_CACHE_HOME to a folder of yours"
exec 9>"$cache/.$name.lock"
if ! flock -n 9; then
  say "another clone is making $name: waiting for it"
  flock -w 3600 9 || fail "another clone is still making $name" \
    "it within an hour" "nothing" "end that one, then try again"
fi
if is_there; then
  link
  exit 0
fi

log=$log_dir/python_env.log

# pip_install ENVIRONMENT ARGUMENTS...: unpacks wheels next to the environment,
# because /tmp is often small. It doesn't keep them: the environment is the
# cache.
pip_install() {
  local python=$1/bin/python tmp=$1/tmp
  shift
  mkdir -p "$tmp"
  run_logged "$log" env TMPDIR="$tmp" PYTHONDONTWRITEBYTECODE= \
    "$python" -m pip --disable-pip-version-check install --no-input \
    --no-cache-dir --progress-bar off "$@" || fail \
    "pip install failed" "torch==$torch and what it needs" \
    "$(cause_of "$log")" "check the network; the whole output is in $log"
  rm -rf "$tmp"
}

check_python() {
  run_logged "$log.check" "$1/bin/python" -c \
    'import torch, torchvision, numpy, safetensors, tokenizers, transformers, \
accelerate, lightning' || fail \
    "the environment does not work" "to import torch" \
    "$(cause_of "$log.check")" "the whole output is in $log.check"
}

if [ -e "$mark" ] && [ -x "$env/bin/python" ]; then
  need_space "$cache" 6000 "torch's CUDA packages" "XDG_CACHE_HOME=..."
  say "adding torch for Python to $env: its CUDA packages, which it does not" \
    "load without, take 3.5 GB on disk (one to four minutes; log: $log)"
  pip_install "$env" -r "$pins"
  check_python "$env"
  rm "$mark"
  link
  exit 0
fi

aside=$env.partial
rm -rf "$env" "$aside"
trap 'rm -rf "$aside"' EXIT
trap 'exit 130' INT TERM

say "Python environment for $("$python" -V), in $env"
if [ "$scope" = libtorch ]; then
  need_space "$cache" 3000 "LibTorch" "XDG_CACHE_HOME=..."
  say "downloading torch $torch for C++: a 530 MB wheel, 1.4 GB on disk; there" \
    "is no GPU; shared by all clones (log: $log)"
else
  need_space "$cache" 8000 "the Python environment" "XDG_CACHE_HOME=..."
  say "downloading torch $torch: a 530 MB wheel, 4.7 GB on disk with its CUDA" \
    "packages; shared by all clones (one to five minutes; log: $log)"
fi
run_logged "$log" "$python" -m venv "$aside" || fail \
  "python3 -m venv failed" "an environment" "$(cause_of "$log")" \
  "is python3-venv installed? The whole output is in $log"
if [ "$scope" = libtorch ]; then
  pip_install "$aside" --no-deps "torch==$torch" \
    -r "$here/libtorch_requirements.txt"
  touch "$aside/libtorch_only"
else
  pip_install "$aside" -r "$pins"
  check_python "$aside"
fi
# The scripts in bin/ contain the path of the interpreter.
grep -rlIF "$aside" "$aside/bin" "$aside/pyvenv.cfg" |
  xargs -r sed -i "s|$aside|$env|g"
mv "$aside" "$env"
link
