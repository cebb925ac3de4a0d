#!/usr/bin/env python3
"""tools/quickstart answers on stdout, passes on exit codes, and leaves no process and no file."""

import glob
import os
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def processes_with(text):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                if text.encode() in file.read():
                    found.append(path)
        except OSError:
            pass  # ended meanwhile
    return found


class Quickstart(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, *arguments, program=os.path.join(ROOT, "tools", "quickstart"), cwd=None):
        return subprocess.Popen(
            [program, *arguments], text=True, cwd=cwd,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": self.folder.name}, start_new_session=True,
            # A shell cannot trap what was ignored when it started.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def expect_nothing_left(self):
        self.assertEqual(os.listdir(self.folder.name), [])
        self.assertEqual(processes_with(self.folder.name), [])

    def test_the_answer_is_on_stdout_and_nothing_is_left(self):
        process = self.start("What is a hummingbird?")
        output, progress = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, progress)
        self.assertIn("bird", output)
        self.assertNotIn("quickstart:", output)
        self.assertNotIn("ninja", output)
        self.expect_nothing_left()

    def test_files_are_those_of_the_callers_folder_through_a_link_too(self):
        with tempfile.TemporaryDirectory() as elsewhere:
            link = os.path.join(elsewhere, "ask")
            os.symlink(os.path.join(ROOT, "tools", "quickstart"), link)
            with open(os.path.join(elsewhere, "n.txt"), "w") as file:
                file.write("What is a hummingbird?")
            process = self.start("-f", "n.txt", program=link, cwd=elsewhere)
            output, progress = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, progress)
        self.assertIn("bird", output)

    def test_a_wrong_option_is_a_usage_error_and_nothing_is_left(self):
        process = self.start("--no-such-option", "hello")
        output, progress = process.communicate(timeout=300)
        self.assertEqual((process.returncode, output), (64, ""), progress)
        self.expect_nothing_left()

    def test_an_interrupt_leaves_nothing(self):
        process = self.start("Tell me a story.")
        while "starting a private glmd" not in (line := process.stderr.readline()):
            self.assertNotEqual(line, "", "ended before it started glmd")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.expect_nothing_left()


if __name__ == "__main__":
    sys.exit(unittest.main())
