#!/usr/bin/env python3
"""glmd makes, shows and keeps the memory plan."""

import json
import os
import re
import subprocess
import sys
import unittest

from daemon import GLMCTL, GLMD, LIMIT_S, Daemon, wait_until

HOT = "100"


def total_of(log):
    return int(re.search(r"total +(\d+) bytes", log).group(1))


class Plan(unittest.TestCase):
    def test_anonymous_memory_stays_below_the_plan_while_busy(self):
        daemon = Daemon(self).start_ready("--memory", "110M", "--context", "2048")
        total = total_of(daemon.read_log())
        self.assertLessEqual(total, 110 << 20)
        clients = [daemon.connect() for _ in range(6)]
        for client in clients:
            client.submit(1, "word " * 1500, 200, HOT, "seed=1")
        peak = 0
        for client in clients:
            while client.read()[0][0] not in ("DONE", "ERROR", ""):
                peak = max(peak, daemon.memory_bytes("RssAnon"))
        self.assertGreater(peak, 10 << 20)
        self.assertLessEqual(peak, total)

    def test_below_the_floor_every_term_of_the_sum_is_printed(self):
        result = subprocess.run([GLMD, "--memory", "20M", "--plan"], capture_output=True, text=True,
                                timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 75)
        for term in ("budget", "dense weights", "KV cache", "scratch", "reserve", "expert arena",
                     "total", "remedy"):
            self.assertIn(term, result.stderr)


    def test_more_than_there_is_is_not_taken_silently(self):
        result = subprocess.run([GLMD, "--memory", "1000T", "--plan"], capture_output=True,
                                text=True, timeout=LIMIT_S, check=False)
        self.assertIn(f"instead of {1000 << 40} bytes asked for", result.stdout)
        daemon = Daemon(self).start_ready("--memory", "1000T")
        self.assertIn(f"memory: {1000 << 40} bytes asked for", daemon.read_log())


class Commands(unittest.TestCase):
    def run_glmd(self, *arguments):
        return subprocess.run([GLMD, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)

    def test_check_names_what_it_opened(self):
        result = self.run_glmd("--check")
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("container: ", "config: ", "tokenizer: ", "chat template: ", "total"):
            self.assertIn(part, result.stdout)

    def test_plan_and_doctor_print_one_json_object(self):
        plan = json.loads(self.run_glmd("--plan", "--json").stdout)
        self.assertGreater(plan["measured"]["disk_bytes_per_s"], 0)
        self.assertGreater(plan["expected"]["tokens_per_s"], 0)
        self.assertEqual(plan["model"]["experts"], 120)
        doctor = self.run_glmd("--doctor", "--json")
        self.assertEqual(json.loads(doctor.stdout)["exit_code"], doctor.returncode)

    def test_whatever_is_wrong_an_object_is_an_object(self):
        for arguments, code in ((["--config", "/nonexistent"], 78), (["--memory", "much"], 64),
                                (["--model", "/nonexistent"], 66), (["--memory", "20M"], 75)):
            for action in ("--plan", "--doctor"):
                with self.subTest(action=action, arguments=arguments):
                    result = self.run_glmd(action, "--json", *arguments)
                    self.assertEqual(result.returncode, code)
                    told = json.loads(result.stdout)
                    if action == "--plan":
                        self.assertTrue(told["error"])
                        continue
                    self.assertEqual(told["exit_code"], code)
                    for finding in told["findings"]:
                        self.assertTrue(finding["remedy"], finding)

    def test_the_plan_in_the_log_ends_without_a_line_of_blanks(self):
        log = Daemon(self).start_ready().read_log()
        self.assertRegex(log, r"GiB\n  floor +\d+ bytes .*settings\nglmd: ")

    def test_doctor_fails_with_the_code_of_the_gravest_finding(self):
        self.assertEqual(self.run_glmd("--doctor", "--memory", "20M").returncode, 75)
        missing = self.run_glmd("--doctor", "--model", "/nonexistent/model")
        self.assertEqual(missing.returncode, 66)
        self.assertIn("error: model: /nonexistent does not exist", missing.stdout)

    def test_a_full_device_is_noticed(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            for action in ("--plan", "--doctor", "--check", "--help", "--version"):
                code = subprocess.call([GLMD, action], stdout=full, stderr=subprocess.DEVNULL)
                self.assertEqual(code, 74, action)

    def test_glmctl_asks_the_daemon_or_runs_glmd(self):
        daemon = Daemon(self)
        command = [GLMCTL, "--socket", daemon.path, "plan", "--json"]
        alone = json.loads(subprocess.check_output(command, timeout=LIMIT_S))
        self.assertIn("measured", alone)
        daemon.start_ready("--context", "1024")
        asked = json.loads(subprocess.check_output(command, timeout=LIMIT_S))
        self.assertEqual(asked["memory"]["context_tokens"], 1024)
        self.assertGreater(asked["measured"]["memory_bytes_per_s"], 0)
        self.assertGreater(asked["expected"]["tokens_per_s"], 0)

    def test_both_print_one_table(self):
        daemon = Daemon(self).start_ready()
        asked = subprocess.check_output([GLMCTL, "--socket", daemon.path, "plan"], text=True)
        planned = self.run_glmd("--plan", "--threads", "1").stdout

        def rows(table):
            return [line[:16].strip() for line in table.splitlines() if line[:4] != "busy"]
        self.assertEqual(rows(asked), rows(planned))
        self.assertIn("floor", rows(planned))
        self.assertIn("expected", rows(planned))


if __name__ == "__main__":
    sys.exit(unittest.main())
