#!/bin/sh
# Makes the virtual environment with this project (editable) and everything it needs to run and to be tested.
# On Debian as root it installs Python's venv module first when that is missing.
set -eu

venv=$1
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null 2>&1 || python=python3

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "make install: $python has no venv module; install it (Debian: apt-get install python3-venv)" >&2
        exit 1
    fi
    echo "make install: installing Python's venv module (apt-get)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    command -v "$python" >/dev/null 2>&1 || python=python3
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "make install: Python 3.11 or newer is needed, $python is $("$python" -V); say PYTHON=/path/to/python" >&2
    exit 1
fi

if [ ! -x "$venv/bin/pip" ]; then
    echo "make install: making $venv with $("$python" -V)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
echo "make install: installing the project and its dependencies (a minute or two the first time)"
"$venv/bin/pip" install --quiet --disable-pip-version-check -e '.[server,test]'
