#!/usr/bin/env bash
# Installs what this machine lacks for building, training and testing: Debian/Ubuntu packages with apt (as root or with
# sudo; otherwise it only lists them), and Python packages into .venv. Quiet and quick if nothing is missing.
#
#   ./scripts/setup.sh
#   ./scripts/setup.sh --with-prepare   also installs packages of data/prepare for parquet, datasets and near
#                                       duplicates (so does CI=true)
#   ./scripts/setup.sh --with-tracking  also installs tensorboard, wandb and prometheus_client for scripts/follow.py
#                                       (so does CI=true)
#   ./scripts/setup.sh --with-browser   also installs Chromium and tools with which tests view reports (so does CI=true)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PACKAGES=(
    g++ make git python3 python3-venv ccache  # tools
    libopenblas-openmp-dev libdnnl-dev # matmuls on the CPU
    doctest-dev nlohmann-json3-dev libxxhash-dev libfmt-dev libssl-dev
    libopenmpi-dev openmpi-bin
)
PYTHON_PACKAGES=(matplotlib)
PREPARE=./data PREPARE_PACKAGES=(prepare tiktoken tokenizers tqdm zstandard)

# NCCL's header, for builds with several GPUs. If the CUDA toolkit lacks it, the Python package has it.
NVCC=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
if [[ -x $NVCC ]] && ! compgen -G "$(dirname "$NVCC")/../include/nccl.h" >/dev/null &&
    [[ ! -e /usr/include/nccl.h && ! -e /usr/local/include/nccl.h && ! -e ${NCCL_HOME:-/usr}/include/nccl.h ]]; then
    NCCL_PACKAGE=nvidia-nccl-cu$("$NVCC" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
fi

WITH_BROWSER=${CI:-} WITH_TRACKING=${CI:-}
for argument in "$@"; do
    case "$argument" in
        --with-tiktoken) ;;  # installed by default
        --with-prepare) WITH_PREPARE=1 ;;
        --with-tracking) WITH_TRACKING=true ;;
        --with-browser) WITH_BROWSER=true ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) echo "setup.sh: unknown argument '$argument' (--help)" >&2 && exit 2 ;;
    esac
done

if [[ $WITH_BROWSER == true ]]; then
    PACKAGES+=(chromium fonts-dejavu-core)
    PYTHON_PACKAGES+=(playwright axe_playwright_python)
fi
if [[ $WITH_TRACKING == true ]]; then PYTHON_PACKAGES+=(tensorboard prometheus_client wandb); fi

# ---- system packages -----------------------------------------------------------------------------------------------

# Prints the packages that are not installed.
missing_packages() {
    local report installed package
    # dpkg-query fails if it does not know one of the packages, but still reports the others.
    report=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${PACKAGES[@]}" 2>/dev/null || true)
    installed=" $(sed -n 's/^installed //p' <<<"$report" | tr '\n' ' ')"
    for package in "${PACKAGES[@]}"; do
        [[ "$installed" == *" $package "* ]] || echo "$package"
    done
}

install_packages() {
    local as_root=()
    if ((EUID != 0)); then
        # If sudo would ask for a password, use it only if somebody can type one.
        if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
            as_root=(sudo)
        else
            echo "setup.sh: these packages are missing, and installing them needs root or sudo:" >&2
            echo "    apt-get install $*" >&2
            exit 1
        fi
    fi
    echo "setup: installing $*"
    local log
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get -qq update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "setup.sh: apt could not install the packages; the whole log is in $log" >&2
        exit 1
    fi
    rm -f "$log"
}

have_tools() {
    local tool
    for tool in g++ make git python3; do command -v "$tool" >/dev/null || return 1; done
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    mapfile -t missing < <(missing_packages)
    if ((${#missing[@]} > 0)); then install_packages "${missing[@]}"; fi
elif ! have_tools; then
    echo "setup.sh: this system has no apt. Please install: g++ (11 or newer), make, git, python3 with venv, and" >&2
    echo "the development files of OpenBLAS, doctest, nlohmann-json, xxHash, fmt, OpenSSL and Open MPI." >&2
    exit 1
fi

# ---- Python packages -----------------------------------------------------------------------------------------------

PYTHON=.venv/bin/python

has_python_packages() {
    "$PYTHON" - "$@" <<'END' 2>/dev/null
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
END
}

install_python_packages() {
    echo "setup: installing $* into .venv"
    # --clear also repairs an environment that an interrupted attempt left incomplete.
    "$PYTHON" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear .venv
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

if ! has_python_packages "${PYTHON_PACKAGES[@]}"; then install_python_packages "${PYTHON_PACKAGES[@]}"; fi
# The package that prepares text, installed in place. Training does not need it.
if [[ -n ${WITH_PREPARE:-} || ${CI:-} == true ]]; then
    PREPARE=./data[all] PREPARE_PACKAGES+=(pyarrow datasketch datasets gguf)
fi
if ! has_python_packages "${PREPARE_PACKAGES[@]}"; then
    install_python_packages -e "$PREPARE" ||
        echo "setup.sh: not all packages of data/prepare: text can be prepared with --tokenizer bytes alone" >&2
fi

if [[ -n ${NCCL_PACKAGE:-} ]] && ! compgen -G '.venv/lib/python3*/site-packages/nvidia/nccl/include/nccl.h' >/dev/null; then
    echo "setup: installing $NCCL_PACKAGE into .venv"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps "$NCCL_PACKAGE" ||
        echo "setup.sh: no NCCL: train_gpt will be built for one GPU" >&2
fi
