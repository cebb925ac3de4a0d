#!/bin/bash
# Every manual page is clean to mandoc, warnings included.
# usage: lint.sh MAN_FOLDER
set -euo pipefail
if ! command -v mandoc >/dev/null; then
  echo "mandoc is not installed"
  exit 77
fi
code=0
found=$(mandoc -T lint -W warning "$1"/*.[1-8]) || code=$?
if [ "$code" -ne 0 ] || [ -n "$found" ]; then
  echo "$found"
  exit 1
fi
