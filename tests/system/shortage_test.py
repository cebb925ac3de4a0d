#!/usr/bin/env python3
"""Every program that cannot have its threads or its memory ends in one line."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

from daemon import BUILD, LIMIT_S, MINI

NOBODY = 65534


class Shortage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="glmd-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o755)

    def run_limited(self, command, limit, *, as_nobody=False, text=""):
        """The last line and the exit code of a program within limit (resource, value)."""
        def become_limited():
            if as_nobody:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            resource.setrlimit(limit[0], (limit[1], limit[1]))
        result = subprocess.run(command, input=text, capture_output=True, text=True,
                                timeout=LIMIT_S, check=False, preexec_fn=become_limited,
                                cwd=self.folder)
        self.assertNotIn("terminate called", result.stderr)
        return result.stderr.splitlines()[-1:], result.returncode

    def assert_ends_in_one_line(self, name, what, line_and_code):
        line, code = line_and_code
        self.assertEqual(code, 75, line)
        self.assertRegex(line[0], f"^{name}: {what}: ")

    @unittest.skipIf(os.geteuid() != 0, "needs root to become somebody with a limit")
    def test_of_threads(self):
        # Copies, since the build may lie where nobody else may go.
        model = shutil.copytree(MINI, os.path.join(self.folder, "model"))
        out = os.path.join(self.folder, "out")
        os.mkdir(out)
        os.chown(out, NOBODY, NOBODY)
        with open(os.path.join(self.folder, "text"), "w", encoding="ascii") as file:
            file.write("The hummingbird. " * 100)
        data = os.path.join(out, "data")
        with open(data, "wb") as file:
            file.write(os.urandom(1 << 20) * 4)
        for name, *arguments in (
                ("glmd-bench", "kernels", "--threads", "2", "--formats", "nl4"),
                ("glmd-bench", "attention", "--threads", "2"),
                ("glmd-bench", "step", "--model", model, "--threads", "2", "--tokens", "8"),
                ("glmd-bench", "stream", "--model", model, "--threads", "2"),
                ("glmd-bench", "reads", "--file", data, "--expert", "1M", "--seconds", "0.05",
                 "--depths", "4", "--sizes", "1M", "--rounds", "1"),
                ("glmd-eval", "--model", model, "--ppl", "text", "--threads", "2"),
                ("glmd-make-model", "--preset", "glm52-slice", "--layers", "dense", "--vocabulary",
                 "64", "--threads", "2", os.path.join(out, "made"))):
            with self.subTest(name=name, arguments=arguments):
                program = os.path.join(self.folder, name)
                if not os.path.exists(program):
                    shutil.copy(os.path.join(BUILD, "bin", name), program)
                self.assert_ends_in_one_line(name, "threads", self.run_limited(
                    [program, *arguments], (resource.RLIMIT_NPROC, 1), as_nobody=True))

    def test_of_memory(self):
        for text, name, *arguments in (
                ("", "glmd-replay", "--synthetic", "--tokens", "200000", "--layers", "75"),
                ("a" * (60 << 20), "glmd-inspect", "tokenize", MINI)):
            with self.subTest(name=name):
                program = os.path.join(BUILD, "bin", name)
                self.assert_ends_in_one_line(name, "memory", self.run_limited(
                    [program, *arguments], (resource.RLIMIT_AS, 100 << 20), text=text))


if __name__ == "__main__":
    sys.exit(unittest.main())
