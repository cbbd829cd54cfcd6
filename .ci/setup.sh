#!/usr/bin/env bash
# Makes .venv and installs snapfmt into it, editable. Usage: .ci/setup.sh demo|dev
#
#   demo   what `snapfmt demo` needs: torch, Ray, TransferQueue, the terminal output
#   dev    the same, and what the tests and the checks need; S3 servers in .venv/s3-servers
#
# Runs again in a moment: a stamp names what was installed, for which Python, from which folder.
#
#   PYTHON          the interpreter to use, instead of a search for one
#   SNAPFMT_TORCH   the requirement for torch, such as 'torch==2.9.1', instead of the choice below
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile=${1:-dev}
case "$profile" in
  demo) extras=coordinator,torch,ray,transfer-queue,cli ;;
  dev) extras=coordinator,torch,ray,transfer-queue,cli,s3,zarr,test,dev ;;
  *) echo "usage: .ci/setup.sh demo|dev" >&2; exit 2 ;;
esac

export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# An interpreter that is started by a version manager must not see the caller's environment.
unset PYTHONHOME PYTHONPATH
venv=.venv
python=$venv/bin/python

say() { printf 'set-up: %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

# Works, in range, and able to make a virtual environment (a bare Debian Python is not).
usable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    >/dev/null 2>&1
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 to 3.13 with venv and ensurepip"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if usable "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "found no Python 3.11 to 3.13 that can make a virtual environment (on Debian and Ubuntu: \
install python3-venv); name one with PYTHON=/path/to/python3"
}

key() {
  "$python" - "$1" "${SNAPFMT_TORCH:-}" <<'PYTHON'
import hashlib, pathlib, sys

digest = hashlib.sha256()
for name in ("pyproject.toml", "snapfmt/_version.py", ".ci/setup.sh", ".ci/s3-servers.txt"):
    digest.update(pathlib.Path(name).read_bytes() + b"\0")
print(*sys.argv[1:], sys.version.split()[0], digest.hexdigest(), sep="|")
PYTHON
}

up_to_date() {
  local done
  # What the tests need includes what the demonstration needs.
  for done in "$profile" dev; do
    if [ -f "$venv/.snapfmt-$done" ] && [ "$(cat "$venv/.snapfmt-$done")" = "$(key "$done")" ]; then
      return 0
    fi
  done
  return 1
}

# What pip says goes to a log: a configured source that lacks a package costs a line per package.
pip_install() { "$python" -m pip ${into:+--python "$into"} install --progress-bar off "$@" >"$venv/snapfmt-setup.log" 2>&1; }

install() {
  pip_install "$@" && return
  grep -v '^WARNING: Location' "$venv/snapfmt-setup.log" | tail -n 40 >&2
  die "pip failed; all of its output: $venv/snapfmt-setup.log"
}

has_nvidia_gpu() {
  [ -e /dev/nvidia0 ] || { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; }
}

# Without an NVIDIA GPU the CPU build of torch is enough, and some gigabytes smaller. It is taken
# when a source that pip is configured for offers it; otherwise torch comes with the extras.
install_torch() {
  if "$python" -c 'import importlib.metadata as m; m.version("torch")' >/dev/null 2>&1; then
    return
  elif [ -n "${SNAPFMT_TORCH:-}" ]; then
    say "installing $SNAPFMT_TORCH (from SNAPFMT_TORCH)"
    install "$SNAPFMT_TORCH"
  elif has_nvidia_gpu; then
    say "an NVIDIA GPU is present: torch comes with the other packages"
  else
    say "no NVIDIA GPU: looking for a CPU build of torch"
    if pip_install 'torch==2.13.0+cpu'; then
      say "installed the CPU build"
    else
      say "none offered: torch comes with the other packages (on Linux that build is large)"
    fi
  fi
}

if [ -e "$venv" ] && ! { usable "$python" && [ "$(cat "$venv/.snapfmt-home" 2>/dev/null)" = "$PWD" ]; }; then
  say "$venv does not work here (not made by this script, moved, or its Python is gone): making it anew"
  rm -rf "$venv"
fi
if [ -e "$venv" ] && [ -n "${PYTHON:-}" ]; then
  usable "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 to 3.13 with venv and ensurepip"
  version='import sys; print(sys.version)'
  if [ "$("$python" -c "$version")" != "$("$PYTHON" -c "$version")" ]; then
    say "$venv is of another Python than PYTHON=$PYTHON: making it anew"
    rm -rf "$venv"
  fi
fi
if [ -e "$venv" ] && up_to_date; then
  exit 0
fi

started=$SECONDS
if [ ! -e "$venv" ]; then
  base=$(find_python)
  say "making $venv with $base ($("$base" -c 'import platform; print(platform.python_version())'))"
  "$base" -m venv "$venv" || { rm -rf "$venv"; die "could not make $venv"; }
  echo "$PWD" > "$venv/.snapfmt-home"
fi
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
install_torch
say "installing snapfmt[$extras], editable; the first time takes a few minutes"
install --editable ".[$extras]"
if [ "$profile" = dev ]; then
  # Apart from the rest: their own needs must not decide which versions the tests run with.
  say "installing the S3 servers of the tests"
  rm -rf "$venv/s3-servers"
  "$python" -m venv --without-pip "$venv/s3-servers"
  into=$venv/s3-servers/bin/python install --requirement .ci/s3-servers.txt
fi
key "$profile" > "$venv/.snapfmt-$profile"
say "done in $((SECONDS - started)) s"
