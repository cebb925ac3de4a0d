#!/usr/bin/env python3
"""Checks what no compiler checks: who includes whom, files nobody builds, leftovers.

usage: check_tree.py [ROOT]

The arrows are those of ARCHITECTURE.md. Prints one line a finding, `path:line: what`, and exits 1 if
there was any. Needs only the standard library.
"""

import os
import re
import sys

# Folder -> what it may include besides itself and the standard library. An entry that ends in .h
# is that one file. Longest folder name wins.
PLATFORM_ONLY = {"daemon/platform"}
TOOLS = {"daemon/storage", "daemon/kernels", "daemon/text", "daemon/platform", "tools"}
TOOLS_WITH_MODEL = TOOLS | {"daemon/compute", "daemon/experts", "daemon/kv", "daemon/model",
                            "daemon/generation"}
TOOLS_WITH_MEMORY = TOOLS_WITH_MODEL | {"daemon/plan", "daemon/host/memory_sources.h"}
ARROWS = {
    "protocol": set(),
    "daemon/platform": set(),
    "daemon/kernels": {"daemon/platform/check.h"},
    # Block formats are the vocabulary of a container's headers; no kernel is called from storage.
    "daemon/storage": {"daemon/platform", "daemon/kernels/block_formats.h"},
    "daemon/compute": {"daemon/kernels", "daemon/platform"},
    "daemon/experts": {"daemon/storage", "daemon/compute", "daemon/kernels", "daemon/platform"},
    "daemon/kv": {"daemon/storage", "daemon/kernels", "daemon/platform"},
    "daemon/model": {"daemon/experts", "daemon/kv", "daemon/compute", "daemon/storage",
                     "daemon/kernels", "daemon/platform"},
    "daemon/text": PLATFORM_ONLY,
    "daemon/constraint": {"daemon/platform", "daemon/text"},
    # The sampler's passes over a vocabulary are kernels.
    "daemon/generation": {"daemon/model", "daemon/kv", "daemon/text", "daemon/constraint",
                          "daemon/experts", "daemon/kernels/kernel_table.h", "daemon/platform"},
    "daemon/server": {"protocol", "daemon/generation/messages.h", "daemon/generation/channel.h",
                      "daemon/platform"},
    "daemon/settings": {"daemon/experts", "daemon/kv", "daemon/storage", "daemon/platform"},
    "daemon/plan": {"daemon/model", "daemon/experts", "daemon/platform"},
    "daemon/host": {"daemon/plan", "daemon/generation/channel.h", "daemon/storage",
                    "daemon/platform"},
    "daemon/records": {"daemon/settings", "daemon/experts", "daemon/storage", "daemon/platform"},
    "daemon/served": {"daemon/settings", "daemon/plan", "daemon/host", "daemon/generation",
                      "daemon/model", "daemon/kv", "daemon/text", "daemon/experts",
                      "daemon/storage", "daemon/kernels/kernel_table.h", "daemon/platform"},
    "daemon/doctor": {"daemon/served", "daemon/settings", "daemon/plan", "daemon/host",
                      "daemon/model", "daemon/text", "daemon/experts", "daemon/storage",
                      "daemon/platform"},
    "daemon": {"protocol", "daemon"},
    "client": {"protocol", "daemon/platform", "daemon/text", "client"},
    "client/cli": {"protocol", "daemon/platform", "daemon/text", "client", "daemon/plan/plan_table.h"},
    "tools": TOOLS,
    # What a bench and an evaluation may take is the daemon's arithmetic.
    "tools/bench": TOOLS_WITH_MEMORY,
    "tools/eval": TOOLS_WITH_MEMORY,
    # The history of use is a file of the experts' folder.
    "tools/mirror": TOOLS | {"daemon/experts"},
    "tools/replay": TOOLS_WITH_MODEL,
    "tests": {"protocol", "daemon", "client", "tools", "tests"},
}
# Headers of libraries -> the folders that may name them.
INTRINSICS = re.compile(r"(\w*intrin|x86gprintrin|arm_neon|arm_sve)\.h$")
# The peak loops of the bench are what kernels are measured against.
INTRINSICS_FOLDERS = ("daemon/kernels/avx2", "daemon/kernels/avx512", "tools/bench")
LIBUV = re.compile(r"(uv\.h|uv/.*)$")
LIBUV_FOLDERS = ("daemon/server", "client/http", "tests/server", "tests/client")
LIBSYSTEMD = re.compile(r"systemd/.*$")
LIBSYSTEMD_FOLDERS = ("daemon", "client/http", "tests")
STANDARD = re.compile(r"\w+$")  # <vector>: no dot, no slash
C_HEADER = re.compile(r"\w+\.h$")  # <string.h>
STANDARD_ONLY = ("protocol",)
C_HEADERS_ONLY = ("daemon/kernels",)

CODE_FOLDERS = ("protocol", "daemon", "client", "tools", "tests")
CODE_ENDINGS = (".h", ".cpp", ".c")
TEXT_ENDINGS = CODE_ENDINGS + (".py", ".sh", ".md", ".txt", ".cmake", ".json", ".service", ".socket",
                               ".in", ".yml", ".toml", ".1", ".5", ".7", ".8", ".sysusers",
                               ".tmpfiles")
# Data is kept as it came (models, reference models); the rest is not ours to check.
SKIPPED_FOLDERS = (".git", "build", ".venv", "__pycache__", "shared", "models", "tests/golden")
FORBIDDEN_NAMES = {"utils", "util", "common", "misc", "core", "manager", "managers", "helpers"}

# Written in pieces so that this file does not find itself.
LEFTOVERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b|\bnot imple" r"mented\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(wo" r"rk|ho" r"me|ro" r"ot)/\w")
REGISTRY_HOSTS = re.compile(
    r"\b(py" r"pi\.org|files\.python" r"hosted\.|python" r"hosted\.org|deb\.deb" r"ian\.org|"
    r"security\.deb" r"ian\.org|registry\.npm" r"js\.|crat" r"es\.io|proxy\.gol" r"ang\.|"
    r"arti" r"factory)")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
CMAKE_FILE = re.compile(r"[\w./${}+-]+\.(?:cpp|c|h)\b")


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def under_any(path, folders):
    return any(under(path, folder) for folder in folders)


class Tree:
    def __init__(self, root):
        self.root = root
        self.findings = []
        self.folders = []
        self.files = []
        for folder, names, files in os.walk(root):
            here = os.path.relpath(folder, root).replace(os.sep, "/")
            here = "" if here == "." else here + "/"
            names[:] = sorted(n for n in names if here + n not in SKIPPED_FOLDERS
                              and n not in (".git", "__pycache__"))
            self.folders += [here + n for n in names]
            self.files += [here + f for f in sorted(files) if f != ".git"]
        self.known = set(self.files)
        self.code = [f for f in self.files
                     if f.endswith(CODE_ENDINGS) and under_any(f, CODE_FOLDERS)]

    def report(self, path, line, what):
        where = f"{path}:{line}" if line else path
        self.findings.append(f"{where}: {what}")

    def lines(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()

    def includes(self, path):
        """(line, text, is_ours) of each include."""
        for number, line in enumerate(self.lines(path), 1):
            match = INCLUDE.match(line)
            if match:
                yield number, match.group(1) or match.group(2), match.group(1) is not None

    def resolve(self, path, text):
        """The file that a quoted include means, or None."""
        beside = os.path.normpath(os.path.join(os.path.dirname(path), text)).replace(os.sep, "/")
        for candidate in (beside, "daemon/" + text, text):
            if candidate in self.known:
                return candidate
        return None


def owner(path):
    """The key of ARROWS that a file falls under."""
    return max((folder for folder in ARROWS if under(path, folder)), key=len, default=None)


def may_include(path, target):
    home = owner(path)
    if owner(target) == home:
        return True
    return any(target == entry if entry.endswith(".h") else under(target, entry)
               for entry in ARROWS[home])


def check_quoted_include(tree, path, number, text, included):
    target = tree.resolve(path, text)
    if target is None:
        tree.report(path, number, f'"{text}" is no file of this tree')
        return
    included.add(target)
    if not may_include(path, target):
        tree.report(path, number, f"{owner(path)} may not include {target}")


def check_library_include(tree, path, number, text):
    if INTRINSICS.match(text):
        if not under_any(path, INTRINSICS_FOLDERS):
            tree.report(path, number,
                        f"<{text}>: intrinsics belong in {' and '.join(INTRINSICS_FOLDERS)}")
    elif LIBUV.match(text):
        if not under_any(path, LIBUV_FOLDERS):
            tree.report(path, number, f"<{text}>: libuv belongs in daemon/server and client/http")
    elif LIBSYSTEMD.match(text):
        if not under_any(path, LIBSYSTEMD_FOLDERS):
            tree.report(path, number, f"<{text}>: libsystemd belongs in the daemon and client/http")
    elif under_any(path, STANDARD_ONLY) and not STANDARD.match(text):
        tree.report(path, number, f"<{text}>: only the standard library here")
    elif under_any(path, C_HEADERS_ONLY) and not (STANDARD.match(text) or C_HEADER.match(text)):
        tree.report(path, number, f"<{text}>: only C and standard headers here")


def check_includes(tree):
    included = set()
    for path in tree.code:
        for number, text, is_ours in tree.includes(path):
            if is_ours:
                check_quoted_include(tree, path, number, text, included)
            else:
                check_library_include(tree, path, number, text)
    return included


def files_named_by_cmake(tree):
    """Exact names, and patterns for names with a variable of a loop in them."""
    names, patterns = set(), []
    for path in tree.files:
        if os.path.basename(path) != "CMakeLists.txt":
            continue
        folder = os.path.dirname(path)
        text = "\n".join(line.split("#")[0] for line in tree.lines(path))
        for token in CMAKE_FILE.findall(text):
            for variable in ("CMAKE_SOURCE_DIR", "PROJECT_SOURCE_DIR"):
                token = token.replace("${" + variable + "}", "/")
            token = token.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            file = token.lstrip("/") if token.startswith("/") else os.path.join(folder, token)
            file = os.path.normpath(file).replace(os.sep, "/")
            if "${" in file:
                parts = re.split(r"\$\{\w+\}", file)
                patterns.append(re.compile(r"\w+".join(re.escape(p) for p in parts) + "$"))
            else:
                names.add(file)
    return names, patterns


def check_everything_is_built(tree, included):
    names, patterns = files_named_by_cmake(tree)
    for path in tree.code:
        if path in names or any(p.match(path) for p in patterns):
            continue
        if path.endswith(".h"):
            if path not in included:
                tree.report(path, 0, "included by nothing and named in no CMakeLists.txt")
        else:
            tree.report(path, 0, "named in no CMakeLists.txt: nobody builds it")


def check_folder_names(tree):
    for folder in tree.folders:
        if under_any(folder, CODE_FOLDERS) and os.path.basename(folder) in FORBIDDEN_NAMES:
            tree.report(folder, 0, "a folder's name says what is in it")
        if os.path.dirname(folder) == "daemon" and folder not in ARROWS:
            tree.report(folder, 0, "not in the table of arrows")


def is_text(tree, path):
    if path.endswith(TEXT_ENDINGS):
        return True
    if "." in os.path.basename(path).lstrip("."):
        return False
    with open(os.path.join(tree.root, path), "rb") as file:
        return b"\0" not in file.read(4096)


def check_text(tree):
    for path in tree.files:
        if not os.path.isfile(os.path.join(tree.root, path)) or not is_text(tree, path):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            for pattern, what in ((LEFTOVERS, "leftover marker"),
                                  (MACHINE_PATHS, "path of one machine"),
                                  (REGISTRY_HOSTS, "host of a package registry")):
                match = pattern.search(line)
                if match:
                    tree.report(path, number, f"{what}: {match.group(0)}")


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    tree = Tree(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else default))
    if not tree.code:
        print(f"{tree.root}: no source files here", file=sys.stderr)
        return 64
    included = check_includes(tree)
    check_everything_is_built(tree, included)
    check_folder_names(tree)
    check_text(tree)
    for finding in tree.findings:
        print(finding)
    print(f"{len(tree.code)} source files, {len(tree.findings)} findings", file=sys.stderr)
    return 1 if tree.findings else 0


if __name__ == "__main__":
    sys.exit(main())
