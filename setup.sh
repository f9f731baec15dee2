#!/bin/sh
# Makes .venv with m2bayes in it, once; then runs what follows, for instance: sh setup.sh m2bayes --help
set -eu
cd "$(dirname "$0")"
python=.venv/bin/python
[ -d .venv/Scripts ] && python=.venv/Scripts/python.exe

if ! "$python" -c '' >/dev/null 2>&1; then
  found=
  for candidate in python3 python3.13 python3.12 python3.14 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[234]*/bin/python3; do
    if "$candidate" -c 'import sys, ensurepip; sys.exit(not (3, 12) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; then
      found=$candidate
      break
    fi
  done
  rm -rf .venv
  if [ -n "$found" ]; then
    "$found" -m venv .venv
  elif command -v uv >/dev/null 2>&1; then
    uv venv --quiet --seed --python 3.13 .venv
  else
    echo "m2bayes needs Python 3.12 to 3.14, or uv, which fetches one: neither was found" >&2
    exit 1
  fi
fi

stamp=.venv/installed
if ! cmp -s "$stamp" constraints.txt || [ pyproject.toml -nt "$stamp" ]; then
  echo "installing m2bayes into .venv, a minute or two" >&2
  "$python" -m pip install --quiet --disable-pip-version-check -e ".[test]" -c constraints.txt >&2
  cp constraints.txt "$stamp"
fi

[ $# -gt 0 ] || { echo "ready: . .venv/bin/activate" >&2; exit 0; }
PATH="$PWD/$(dirname "$python"):$PATH" exec "$@"
