#!/usr/bin/env python3
"""Object files of instruction-set folders export their kernels and nothing else.

An inline function or template of a common header, compiled in such a folder, is a weak symbol: the
linker may pick that copy for all callers, and the program dies on a CPU without the instructions.
Usage: isa_symbols.py OBJECT...   (of all kernels; those of scalar/ and of no folder are left out)
"""

import os
import re
import subprocess
import sys


def folder_of(path):
    found = re.search(r"glmd_kernels\.dir/([^/]+)/[^/]+$", os.path.normpath(path))
    return found.group(1) if found and found.group(1) != "scalar" else None


def findings(path, folder):
    lines = subprocess.run(["nm", "--demangle", "--extern-only", "--defined-only", path],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        _, kind, name = line.split(" ", 2)
        if name.startswith("DW.ref."):  # a pointer for exceptions, in sanitized builds
            continue
        if kind not in "TDBR":
            yield f"{os.path.relpath(path)}: {name} is weak ({kind}): any caller may get this copy"
        elif not name.startswith((f"glmd::{folder}::", f"glmd::{folder}_kernels()")):
            yield f"{os.path.relpath(path)}: {name} is outside of glmd::{folder}"


def main(paths):
    objects = [(path, folder_of(path)) for path in paths if folder_of(path)]
    found = [finding for path, folder in objects for finding in findings(path, folder)]
    for finding in found:
        print(finding)
    if not objects:
        print("isa_symbols.py: no object of an instruction-set folder was named")
    return 1 if found or not objects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
