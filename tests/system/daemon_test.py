#!/usr/bin/env python3
"""glmd as systemd, clients and administrators see it: the real programs on the embedded model."""

import ctypes
import errno
import functools
import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from daemon import (BUILD, GLMCTL, GLMD, LIMIT_S, MINI, ROOT, SLOW_READS, Client, Daemon,
                    wait_until)

# At this temperature a stop token is one of thousands: the answer is as long as it may be.
HOT = "100"
LONG_TOKENS = 600


def status_of(client):
    client.send("STATUS\n")
    return json.loads(client.read()[1])


def unexplained_fields(status):
    """Of a status, what the manual of glmctl says nothing of."""
    def fields(value, path):
        if not isinstance(value, dict) or path == "engine.memory":  # as plan has it
            return [path]
        return [field for key, inner in value.items()
                for field in fields(inner, f"{path}.{key}" if path else key)]
    with open(os.path.join(ROOT, "man", "glmctl.1"), encoding="utf-8") as file:
        section = re.search(r"^\.Ss What status tells\n(.*?)^\.S[sh] ", file.read(), re.S | re.M)
    words = set(re.findall(r"\w+", section.group(1)))
    return [field for field in fields(status, "") if not words.issuperset(field.split("."))]


def refuse(call, failure):
    """As containers do: a filter of system calls answers with an error. To be run in the child."""
    load_number, if_equal, answer = 0x20, 0x15, 0x06
    allow, refuse_with = 0x7fff0000, 0x00050000
    program = b"".join(struct.pack("HBBI", *step) for step in (
        (load_number, 0, 0, 0), (if_equal, 0, 1, call),
        (answer, 0, 0, refuse_with | failure), (answer, 0, 0, allow)))
    text = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, mode_filter, head, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# The calls of io_uring have the same numbers on every machine.
RING_CALLS = (("set up", 425), ("submit", 426), ("register files", 427))


class NotifySocket:
    """What systemd would be told."""

    def __init__(self, test, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(LIMIT_S)
        test.addCleanup(self.socket.close)
        self.seen = []

    def wait_for(self, text):
        """Reads until a message contains `text`; all messages read so far."""
        while not any(text in message for message in self.seen):
            self.seen.append(self.socket.recv(4096).decode())
        return self.seen


class Notification(unittest.TestCase):
    def test_systemd_hears_of_readiness_life_and_the_end(self):
        daemon = Daemon(self)
        notify = NotifySocket(self, daemon.folder)
        daemon.start(environment={"NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "400000"})
        notify.wait_for("READY=1")
        notify.wait_for("WATCHDOG=1")  # idle is alive
        notify.wait_for("STATUS=ready, 0 active, 0 queued")
        self.assertEqual(daemon.terminate(), 0, daemon.read_log())
        notify.wait_for("STOPPING=1")

    def test_loading_says_how_far_it_is_and_asks_for_time(self):
        daemon = Daemon(self)
        notify = NotifySocket(self, daemon.folder)
        daemon.start(environment={"NOTIFY_SOCKET": notify.path}, read_delay_ms=30)
        notify.wait_for("EXTEND_TIMEOUT_USEC=")
        seen = notify.wait_for(" MB/s)")
        self.assertRegex("".join(seen), r"STATUS=loading weights \d+ % \(")
        self.assertNotIn("READY=1", "".join(seen))
        client = daemon.connect()
        client.send("STATUS\n")
        words, payload = client.read()
        self.assertEqual(words[:2], ["INFO", "status"])
        self.assertIn(b'"state":"loading"', payload)
        self.assertIn(b'"bytes_total":', payload)

    def test_sigterm_ends_the_loading_and_refuses_who_waits(self):
        daemon = Daemon(self).start(read_delay_ms=100)
        client = daemon.connect()
        client.submit(1, "hello")
        client.send("PING\n")
        client.read_until("INFO")  # what stood before it was taken
        begin = time.monotonic()
        self.assertEqual(daemon.terminate(), 0, daemon.read_log())
        self.assertLess(time.monotonic() - begin, 5)  # loading all takes 15 s
        self.assertEqual(client.answer()[1][:3], ["ERROR", "1", "DRAINING"])

    def test_cancel_is_obeyed_while_loading(self):
        daemon = Daemon(self).start(read_delay_ms=100)
        client = daemon.connect()
        client.submit(1, "hello")
        client.send("CANCEL 1\n")
        self.assertEqual(client.answer()[1][:3], ["ERROR", "1", "CANCELLED"])
        self.assertNotIn("ready", daemon.read_log())


class Sockets(unittest.TestCase):
    def start_with_socket(self, daemon, address):
        """As systemd: descriptor 3, and the process it is for by number."""
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(address)
        listener.listen()
        with open(daemon.log, "ab") as log:
            daemon.process = subprocess.Popen(
                ["sh", "-c", 'exec 3<&"$0" && LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"',
                 str(listener.fileno()), GLMD, "--socket", daemon.path, "--threads", "1"],
                pass_fds=[listener.fileno()], stderr=log)

    def test_a_listening_socket_of_systemd_is_adopted_and_left_in_place(self):
        daemon = Daemon(self)
        adopted = os.path.join(daemon.folder, "adopted")
        self.start_with_socket(daemon, adopted)
        client = Client(adopted)
        self.addCleanup(client.close)
        client.send("PING\n")
        self.assertEqual(client.read()[0][0], "INFO")
        self.assertFalse(os.path.exists(daemon.path), "its own socket is not wanted")
        self.assertEqual(daemon.terminate(), 0)
        self.assertTrue(os.path.exists(adopted), "the socket belongs to systemd")

    def test_an_abstract_socket_is_refused_whoever_asks_for_it(self):
        daemon = Daemon(self)
        self.start_with_socket(daemon, "\0" + daemon.path)
        self.assertEqual(daemon.process.wait(LIMIT_S), 78, daemon.read_log())
        self.assertIn("adopt descriptor 3: wanted a socket with a path, got an abstract one",
                      daemon.read_log())
        os.unlink(daemon.log)
        with open(os.path.join(daemon.folder, "toml"), "w", encoding="ascii") as file:
            file.write('socket = "@glmd"\n')
        for arguments in (["--socket", "@glmd"], ["--config", "toml"]):
            for action in ([], ["--check"], ["--doctor"]):
                with self.subTest(arguments=arguments, action=action):
                    result = subprocess.run(
                        [GLMD, *action, *arguments], text=True, stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False, cwd=daemon.folder)
                    self.assertEqual(result.returncode, 78, result.stdout)
                    self.assertIn("@glmd: wanted the path of a socket", result.stdout)
                    self.assertEqual(os.listdir(daemon.folder), ["toml"])

    def test_after_a_kill_the_same_path_serves_again(self):
        daemon = Daemon(self).start_ready()
        client = daemon.connect()
        client.submit(1, "a", LONG_TOKENS, HOT, "seed=1")
        client.read_until("DATA")
        daemon.process.kill()
        daemon.process.wait()
        self.assertEqual(client.answer()[1], [""])
        self.assertTrue(os.path.exists(daemon.path), "a killed daemon leaves its socket")
        daemon.start_ready()
        client = daemon.connect()
        client.submit(1, "a", 4)
        self.assertEqual(client.answer()[1][0], "DONE")

    def test_a_second_daemon_on_a_live_path_is_refused(self):
        daemon = Daemon(self).start_ready()
        second = subprocess.run([GLMD, "--socket", daemon.path], capture_output=True, text=True,
                                timeout=LIMIT_S, check=False)
        self.assertEqual(second.returncode, 75)
        self.assertIn("another daemon listens there", second.stderr)
        daemon.connect()  # and the first still serves

    def test_a_daemon_that_is_refused_leaves_the_trace_of_the_other_alone(self):
        daemon = Daemon(self)
        trace = os.path.join(daemon.folder, "trace")
        daemon.start_ready("--trace-routing", trace)
        with open(trace, "rb") as file:
            written = file.read()
        with open(trace, "ab") as file:  # as if it had written more by now
            file.write(b"records")
        second = subprocess.run([GLMD, "--socket", daemon.path, "--trace-routing", trace],
                                capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(second.returncode, 75)
        with open(trace, "rb") as file:
            self.assertEqual(file.read(), written + b"records")

    def start_together(self, path):
        """Two daemons whose sockets are bound for a second before they listen: who serves."""
        slow = {"LD_PRELOAD": SLOW_READS, "GLMD_TEST_LISTEN_DELAY_MS": "1000"}
        both = [Daemon(self), Daemon(self)]
        for daemon in both:
            daemon.path = path
            daemon.start(environment=slow)
        wait_until(lambda: any(daemon.process.poll() is not None for daemon in both),
                   "one of them to be refused")
        refused = [daemon for daemon in both if daemon.process.poll() is not None]
        self.assertEqual([daemon.process.returncode for daemon in refused], [75])
        self.assertIn("another daemon listens there", refused[0].read_log())
        both.remove(refused[0])
        return both[0]

    def test_of_two_daemons_that_start_together_one_serves(self):
        folder = Daemon(self).folder
        path = os.path.join(folder, "s")
        server = self.start_together(path)
        server.connect()
        server.process.kill()
        server.process.wait()
        server = self.start_together(path)  # now they find a socket that was left over
        server.connect()
        self.assertEqual(server.terminate(), 0, server.read_log())
        self.assertEqual(os.listdir(folder), [])

    def test_a_path_that_cannot_be_had_is_told_apart(self):
        for path, code in (("/nonexistent/s", 69), (__file__, 78), ("/" + "x" * 200, 78)):
            result = subprocess.run([GLMD, "--socket", path], capture_output=True, text=True,
                                    timeout=LIMIT_S, check=False)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(path, result.stderr)

    def test_the_socket_of_who_took_the_path_over_is_left_alone(self):
        first = Daemon(self).start_ready()
        os.unlink(first.path)
        second = Daemon(self)
        second.path = first.path
        second.start_ready()
        self.assertEqual(first.terminate(), 0, first.read_log())
        second.connect()
        self.assertEqual(second.terminate(), 0, second.read_log())
        self.assertFalse(os.path.exists(first.path))

    def test_it_serves_without_any_standard_stream(self):
        daemon = Daemon(self)
        with open(daemon.log, "w", encoding="ascii"):
            pass  # it stays empty
        daemon.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", GLMD, "--socket", daemon.path])
        client = daemon.connect()
        client.submit(1, "a", 4)
        self.assertEqual(client.answer()[1][0], "DONE")
        self.assertEqual(daemon.terminate(), 0)

    def test_a_soft_limit_of_open_files_is_raised_and_a_hard_one_said(self):
        def limits(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        daemon = Daemon(self)
        mirror = shutil.copytree(MINI, os.path.join(daemon.folder, "mirror"))
        daemon.start_ready("--model", MINI, "--mirror", mirror, preexec_fn=limits(8, 256))
        self.assertEqual(daemon.terminate(), 0)
        daemon = Daemon(self).start(preexec_fn=limits(8, 15))
        self.assertEqual(daemon.process.wait(LIMIT_S), 74)
        self.assertIn("open: Too many open files: the limit is 15 (LimitNOFILE=", daemon.read_log())

    def start_with_threads(self, count, has_trace=False):
        """The exit code and log of a daemon that may have so many threads."""
        daemon = Daemon(self)
        os.chown(daemon.folder, 65534, 65534)
        # Copies, since the build may lie where nobody else may go.
        program = shutil.copy(GLMD, daemon.folder)
        model = shutil.copytree(MINI, os.path.join(daemon.folder, "model"))

        def become_limited():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
        trace = ("--trace-routing", os.path.join(daemon.folder, "trace")) if has_trace else ()
        daemon.start("--model", model, *trace, threads=8, program=program,
                     preexec_fn=become_limited)
        return daemon.process.wait(LIMIT_S), daemon.read_log()

    @unittest.skipIf(os.geteuid() != 0, "needs root to become somebody with a limit")
    def test_no_room_for_threads_is_one_line(self):
        # For none, not even that of a trace, and for some of those that compute.
        for count, has_trace in ((1, False), (1, True), (6, False), (9, False), (10, False)):
            with self.subTest(count=count, has_trace=has_trace):
                code, log = self.start_with_threads(count, has_trace)
                self.assertEqual(code, 75, log)
                self.assertRegex(log, r"glmd: threads: Resource temporarily unavailable")

    def ask_as_nobody(self, path, keys):
        """What a process of another user reads, up to the end of its request."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            client = Client(path)
            client.submit(1, "hi", 4, keys=keys)
            while (words := client.read()[0])[0] not in ("DONE", ""):
                os.write(write_end, (" ".join(words) + "\n").encode())
                if words[0] == "ERROR":
                    break
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as output:
            answer = output.read()
        os.waitpid(child, 0)
        return answer

    @unittest.skipIf(os.geteuid() != 0, "needs root to become somebody else")
    def test_trusted_markup_is_refused_for_another_user(self):
        daemon = Daemon(self).start_ready()
        os.chmod(daemon.path, 0o666)
        self.assertIn("ERROR 1 DENIED", self.ask_as_nobody(daemon.path, "markup=1"))
        self.assertIn("ACCEPT 1", self.ask_as_nobody(daemon.path, ""))
        client = daemon.connect()
        client.submit(1, "hi", 4, keys="markup=1")
        self.assertEqual(client.answer()[1][0], "DONE")


class Signals(unittest.TestCase):
    def test_a_hang_up_ends_it_as_cleanly_as_sigterm(self):
        daemon = Daemon(self).start_ready()
        daemon.process.send_signal(signal.SIGHUP)
        self.assertEqual(daemon.process.wait(LIMIT_S), 0, daemon.read_log())
        self.assertIn("draining", daemon.read_log())
        self.assertFalse(os.path.exists(daemon.path))

    def test_signals_without_a_meaning_and_ignored_ones_change_nothing(self):
        def ignore():
            for number in (signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        daemon = Daemon(self).start_ready(preexec_fn=ignore)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
            daemon.process.send_signal(number)
        client = daemon.connect()
        client.submit(1, "a", 4)
        self.assertEqual(client.answer()[1][0], "DONE")
        self.assertNotIn("draining", daemon.read_log())
        self.assertEqual(daemon.terminate(), 0, daemon.read_log())


class Chats(unittest.TestCase):
    QUESTIONS = ("What is a hummingbird?", "What is the capital of France?", "Who are you?")

    def answers(self, daemon):
        client = daemon.connect()
        texts = []
        for number, question in enumerate(self.QUESTIONS, 1):
            chat = {"messages": [{"role": "user", "content": question}],
                    "options": {"add_generation_prompt": True, "enable_thinking": False}}
            client.submit(number, json.dumps(chat), max_tokens="200", keys="fmt=chat")
            text, words = client.answer()
            self.assertIn("reason=stop", words)
            texts.append(text)
        return texts

    def convert_with_one_stop_id(self, folder):
        """The embedded model as a fine-tune's config has it: answers end at <|endoftext|>."""
        source, target = os.path.join(folder, "source"), os.path.join(folder, "model")
        shutil.copytree(os.path.join(ROOT, "models", "mini"), source)
        for name in ("config.json", "generation_config.json"):
            path = os.path.join(source, name)
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            config["eos_token_id"] = 4096
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
        run = subprocess.run([os.path.join(BUILD, "bin", "glmd-convert"), source, target],
                             capture_output=True, text=True, check=True)
        return target, run.stderr

    def test_an_answer_ends_at_the_marker_of_a_turn_whatever_the_stop_ids_are(self):
        wanted = self.answers(Daemon(self).start_ready())
        daemon = Daemon(self)
        model, notes = self.convert_with_one_stop_id(daemon.folder)
        lacking = "eos_token_id: [4096] lacks <|user|> (4103) and <|observation|> (4105)"
        self.assertIn(lacking, notes)
        self.assertEqual(self.answers(daemon.start_ready("--model", model)), wanted)
        self.assertIn(lacking, daemon.read_log())
        for action in ("--check", "--doctor"):
            run = subprocess.run([GLMD, "--model", model, "--socket", daemon.path + "2", action],
                                 capture_output=True, text=True)
            self.assertIn(lacking, run.stdout + run.stderr)


class Places(unittest.TestCase):
    def test_check_names_all_that_cannot_work(self):
        result = subprocess.run(
            [GLMD, "--check", "--socket", "/nonexistent/s", "--state-directory", "/nonexistent",
             "--trace-routing", "/nonexistent/x", "--mirror", "/nonexistent"],
            capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 78, result.stderr)
        for name in ("socket", "state-directory", "trace-routing", "mirrors"):
            self.assertIn(f"glmd: {name}: /nonexistent", result.stderr)

    def test_doctor_refuses_what_check_refuses(self):
        folder = Daemon(self).folder
        odd_template = shutil.copytree(MINI, os.path.join(folder, "odd-template"))
        with open(os.path.join(odd_template, "chat_template.jinja"), "wb") as file:
            file.write(b"x" * (2 << 20))
        broken = shutil.copytree(MINI, os.path.join(folder, "broken"))
        os.truncate(os.path.join(broken, "experts-001.safetensors"), 5000)
        for arguments in (["--mirror", MINI],
                          ["--socket", "/nonexistent/s"], ["--socket", __file__],
                          ["--socket", "/" + "x" * 200], ["--state-directory", "/nonexistent"],
                          ["--trace-routing", "/nonexistent/x"], ["--trace-routing", __file__],
                          ["--model", __file__], ["--model", "/nonexistent"],
                          ["--model", broken], ["--model", odd_template],
                          ["--context", "16777216"], ["--memory", "20M"]):
            with self.subTest(arguments=arguments):
                check, doctor = (
                    subprocess.run([GLMD, action, *arguments], capture_output=True, text=True,
                                   timeout=LIMIT_S, check=False)
                    for action in ("--check", "--doctor"))
                self.assertNotEqual(check.returncode, 0)
                self.assertEqual(doctor.returncode, check.returncode, doctor.stdout)
                self.assertRegex(doctor.stdout, r"\Aerror: ")
                # Whatever is found has a remedy.
                self.assertEqual(len(re.findall(r"^(?:error|warning|note): ", doctor.stdout, re.M)),
                                 len(re.findall(r"^  remedy: .", doctor.stdout, re.M)))

    def test_doctor_warns_of_a_mirror_that_the_start_leaves_out(self):
        broken = shutil.copytree(MINI, os.path.join(Daemon(self).folder, "broken"))
        os.truncate(os.path.join(broken, "experts-001.safetensors"), 5000)
        for mirror, remedy in (("/nonexistent", "glmd-mirror stages"), (broken, "glmd-mirror")):
            result = subprocess.run([GLMD, "--doctor", "--mirror", mirror], capture_output=True,
                                    text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertRegex(result.stdout, rf"warning: mirrors: .*\n  remedy: {remedy}")

    def test_what_is_ignored_of_a_tokenizer_is_said_once(self):
        daemon = Daemon(self)
        model = shutil.copytree(MINI, os.path.join(daemon.folder, "model"))
        changes = {"glmd.json": {"accompanying": []}, "tokenizer.json": {"padding": {"pad_id": 1}}}
        for name, change in changes.items():
            with open(os.path.join(model, name), "r+", encoding="utf-8") as file:
                content = json.load(file) | change
                file.seek(0)
                file.truncate()
                json.dump(content, file)
        daemon.start_ready("--model", model)
        self.assertEqual(daemon.read_log().count("tokenizer.json: padding ignored"), 1)

    def test_io_uring_of_which_a_call_is_forbidden_is_replaced_by_threads(self):
        for doing, call in RING_CALLS:
            for failure in (errno.EPERM, errno.ENOSYS):
                with self.subTest(doing=doing, failure=failure):
                    why = f"io_uring: {doing}: {os.strerror(failure)}"
                    daemon = Daemon(self).start_ready(
                        preexec_fn=functools.partial(refuse, call, failure))
                    client = daemon.connect()
                    client.submit(1, "a", 4)
                    self.assertEqual(client.answer()[1][0], "DONE")
                    self.assertEqual(daemon.terminate(), 0)
                    lines = [line for line in daemon.read_log().splitlines() if why in line]
                    self.assertEqual(len(lines), 1, daemon.read_log())
                    self.assertRegex(lines[0], r"experts are read by \d+ threads, ")
                    for action, said in (("--check", rf"(?m)^reader: \d+ threads, .*; {why}$"),
                                         ("--doctor", f"note: reader: {why}: experts are read by")):
                        result = subprocess.run(
                            [GLMD, action], capture_output=True, text=True, timeout=LIMIT_S,
                            check=False, preexec_fn=functools.partial(refuse, call, failure))
                        self.assertEqual(result.returncode, 0, result.stderr)
                        self.assertRegex(result.stdout, said)

    def test_io_uring_that_is_wanted_and_forbidden_is_a_wrong_setting_and_told_by_all(self):
        path = Daemon(self).path
        for doing, call in RING_CALLS:
            for action in ([], ["--check"], ["--doctor"]):
                with self.subTest(doing=doing, action=action):
                    result = subprocess.run(
                        [GLMD, *action, "--socket", path, "--reader", "io_uring"], text=True,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S,
                        check=False, preexec_fn=functools.partial(refuse, call, errno.EPERM))
                    self.assertEqual(result.returncode, 78, result.stdout)
                    self.assertIn(f"reader: io_uring: {doing}: Operation not permitted",
                                  result.stdout)

    def test_check_says_what_reads(self):
        result = subprocess.run([GLMD, "--check", "--reader", "threads"], capture_output=True,
                                text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^reader: \d+ threads, (direct|buffered: .*)$")

    def test_a_file_that_is_no_trace_is_refused_and_not_touched(self):
        daemon = Daemon(self)
        model = shutil.copytree(MINI, os.path.join(daemon.folder, "model"))
        path = os.path.join(model, "experts-001.safetensors")
        with open(path, "rb") as file:
            before = file.read()
        for action in ([], ["--check"]):
            result = subprocess.run(
                [GLMD, *action, "--model", model, "--socket", daemon.path,
                 "--trace-routing", path],
                capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(result.returncode, 78, result.stderr)
            self.assertIn(f"glmd: trace-routing: {path}: exists and is no routing trace, not "
                          "touched", result.stderr)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), before)

    def test_a_restart_keeps_the_trace(self):
        daemon = Daemon(self)
        trace = os.path.join(daemon.folder, "trace")
        daemon.start_ready("--trace-routing", trace)
        client = daemon.connect()
        client.submit(1, "a", 4)
        self.assertEqual(client.answer()[1][0], "DONE")
        self.assertEqual(daemon.terminate(), 0)
        with open(trace, "rb") as file:
            before = file.read()
        for _ in range(2):  # the second finds a trace without records
            daemon.start_ready("--trace-routing", trace)
            self.assertEqual(daemon.terminate(), 0)
            with open(trace + ".1", "rb") as file:
                self.assertEqual(file.read(), before)
            self.assertLess(os.path.getsize(trace), len(before))

    def test_a_mistyped_state_directory_is_told_at_once(self):
        daemon = Daemon(self).start_ready("--state-directory", "/nonexistent")
        self.assertIn("state-directory: /nonexistent: No such file or directory: the usage "
                      "history cannot be saved there, continuing", daemon.read_log())
        self.assertEqual(daemon.terminate(), 0)


@unittest.skipIf(platform.machine() != "x86_64", "the filters know this machine's numbers")
class Filters(unittest.TestCase):
    """What filters of system calls refuse is said as it is, or makes no difference."""

    def run_without(self, call, *arguments):
        return subprocess.run(
            [GLMD, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=LIMIT_S, check=False, preexec_fn=functools.partial(refuse, call, errno.EPERM))

    def test_what_the_start_needs_is_named(self):
        path = Daemon(self).path
        for call, text, code in (
                (73, f"listen at {path}: lock {path}.lock: Operation not permitted", 77),  # flock
                (89, "found from /proc/self/exe: Operation not permitted", 78),  # readlink
                (435, "glmd: threads: Operation not permitted", 77)):  # clone3
            with self.subTest(call=call):
                result = self.run_without(call, "--socket", path)
                self.assertEqual(result.returncode, code, result.stdout)
                self.assertIn(text, result.stdout)

    def test_a_folder_is_not_taken_for_a_forbidden_one(self):
        faccessat2, folder = 439, Daemon(self).folder
        result = self.run_without(faccessat2, "--check", "--state-directory", folder)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotIn("not permitted", result.stdout)

    def test_locking_is_not_blamed_on_the_limit(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY and soft < 4 << 20:
            self.skipTest(f"the limit of {soft} bytes (at most {hard}) forbids it, too")
        mlock = 149
        daemon = Daemon(self).start_ready(
            preexec_fn=functools.partial(refuse, mlock, errno.EPERM))
        self.assertRegex(daemon.read_log(), "dense weights: .* not locked in memory: the limit "
                         "allows it, a filter of system calls may not, continuing")
        self.assertEqual(daemon.terminate(), 0)

    def test_it_starts_without_knowing_its_groups(self):
        getgroups = 115
        daemon = Daemon(self).start_ready(
            preexec_fn=functools.partial(refuse, getgroups, errno.EPERM))
        self.assertEqual(daemon.terminate(), 0)


class Mirrors(unittest.TestCase):
    """Copies of the embedded model's experts, sound or not."""

    def copy_of(self, daemon, name):
        folder = os.path.join(daemon.folder, name)
        shutil.copytree(MINI, folder)
        return folder

    def test_a_damaged_mirror_changes_no_answer_and_is_told(self):
        keys, arguments = "seed=7", ["--context", "2048", "--sessions", "1"]
        plan = subprocess.run([GLMD, "--plan", "--threads", "1", "--memory", "1M", *arguments],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        # Room for two experts: they are read again and again.
        arguments += ["--memory", re.search(r"wanted at least (\d+) bytes", plan.stderr)[1]]
        daemon = Daemon(self).start_ready(*arguments)
        client = daemon.connect()
        client.submit(1, "The hummingbird", 200, HOT, keys)
        expected, last = client.answer()
        self.assertEqual(last[0], "DONE")
        self.assertEqual(daemon.terminate(), 0)

        for reader in ("threads", "auto"):
            daemon = Daemon(self)
            mirror = self.copy_of(daemon, "mirror")
            for name in os.listdir(mirror):
                if name.startswith("experts-"):
                    path = os.path.join(mirror, name)
                    size = os.path.getsize(path)
                    with open(path, "r+b") as file:
                        file.seek(4096)
                        file.write(bytes(size - 4096))
            daemon.start_ready(*arguments, "--reader", reader, "--mirror", mirror)
            client = daemon.connect()
            for number in (1, 2):
                client.submit(number, "The hummingbird", 200, HOT, keys)
                self.assertEqual(client.answer()[0], expected)
            client.send("STATUS\n")
            engine = json.loads(client.read()[1])["engine"]
            disks = {disk["folder"]: disk for disk in engine["disks"]}
            self.assertGreater(engine["experts"]["rereads"], 0)
            self.assertGreater(disks[mirror]["failures"], 8)
            self.assertEqual(disks[MINI]["failures"], 0)
            self.assertEqual(disks[mirror]["state"], "in use")
            log = daemon.read_log()
            for count in ("1 expert", "2 experts", "4 experts", "8 experts"):
                self.assertEqual(log.count(f"{mirror}: wrong bytes of {count}, read from the other "
                                           "disks, continuing"), 1, log)
            self.assertNotIn(f"{MINI}: wrong", log)
            self.assertEqual(daemon.terminate(), 0)

    def test_a_mirror_that_is_damaged_at_the_start_is_left_out_and_warned_of(self):
        daemon = Daemon(self)
        cut, torn = self.copy_of(daemon, "cut"), self.copy_of(daemon, "torn")
        os.truncate(os.path.join(cut, "experts-001.safetensors"), 4096)
        with open(os.path.join(torn, "mirror.json"), "wb"):
            pass
        mirrors = ["--mirror", cut, "--mirror", torn]
        faults = (f"{cut}/experts-001.safetensors: size: wanted ", f"{torn}/mirror.json: ")
        check = subprocess.run([GLMD, "--check", *mirrors], capture_output=True, text=True,
                               timeout=LIMIT_S, check=False)
        self.assertEqual(check.returncode, 0, check.stderr)
        for fault in faults:
            self.assertIn(f"glmd: mirrors: {fault}", check.stderr)
        self.assertEqual(check.stderr.count("; glmd starts without it"), 2, check.stderr)
        daemon.start_ready(*mirrors)
        client = daemon.connect()
        client.submit(1, "a", 4)
        self.assertEqual(client.answer()[1][0], "DONE")
        log = daemon.read_log()
        for fault in faults:
            self.assertEqual(log.count(fault), 1, log)
        self.assertEqual(log.count("; reading from the other disks, trying again in 30 s, "
                                   "continuing"), 2, log)
        client.send("STATUS\n")
        disks = json.loads(client.read()[1])["engine"]["disks"]
        self.assertEqual([disk["state"] for disk in disks], ["in use", "left out", "left out"])
        self.assertEqual(daemon.terminate(), 0)

    def test_what_is_no_copy_is_refused(self):
        daemon = Daemon(self)
        mirror = self.copy_of(daemon, "mirror")
        for folders, fault in (((MINI,), (MINI, MINI)), ((mirror, mirror), (mirror, mirror))):
            arguments = [word for folder in folders for word in ("--mirror", folder)]
            for check in ([], ["--check"]):
                result = subprocess.run([GLMD, "--socket", daemon.path, *check, *arguments],
                                        capture_output=True, text=True, timeout=LIMIT_S,
                                        check=False)
                self.assertEqual(result.returncode, 65, result.stderr)
                self.assertIn(f"mirror {fault[0]}: experts-001.safetensors: wanted a copy, got "
                              f"the same file as in {fault[1]}\n", result.stderr)


class HangingDisk(unittest.TestCase):
    """Reads of experts that neither come nor fail, as of a server that is mounted hard."""

    def start(self, hanging, *arguments, **environment):
        daemon = Daemon(self)
        self.flag = os.path.join(daemon.folder, "hang")
        environment.update(LD_PRELOAD=SLOW_READS, GLMD_TEST_HANGING=hanging + "/experts-",
                           GLMD_TEST_HANG_FLAG=self.flag)
        daemon.start_ready("--reader", "threads", *arguments, environment=environment)
        with open(self.flag, "wb"):
            pass
        return daemon

    def wait_for_hang(self, client):
        return wait_until(lambda: status_of(client)["engine"].get("hanging_read"),
                          "a read to hang")

    def test_is_told_and_stops_nothing_but_those_who_wait_for_it(self):
        folder = Daemon(self).folder
        notify = NotifySocket(self, folder)
        daemon = self.start(MINI, NOTIFY_SOCKET=notify.path, WATCHDOG_USEC="4000000")
        waits, leaves, other = (daemon.connect() for _ in range(3))
        waits.submit(1, "hello", 4)
        waits.submit(2, "a", 4)
        leaves.submit(1, "a", 4)
        waits.read_until("ACCEPT")
        read = self.wait_for_hang(other)
        self.assertIn("/experts-", read["file"])
        self.assertGreaterEqual(read["seconds"], 5)
        begin = time.monotonic()
        other.send("PING\n")
        self.assertEqual(other.read()[0][0], "INFO")
        status = status_of(other)
        self.assertLess(time.monotonic() - begin, 2)
        self.assertIn("no answer from a disk for ", status["status"])
        self.assertEqual(unexplained_fields(status), [])
        wanted = f"{read['file']}: read of {read['bytes']} bytes at {read['offset']}: "
        self.assertIn(f"{wanted}no answer for 5 s, waiting\n", daemon.read_log())
        notify.seen.clear()
        notify.wait_for("WATCHDOG=1")  # a slow disk is no reason to start again

        waits.send("CANCEL 1\n")
        leaves.close()
        self.assertEqual(self.wait_for_hang(other)["file"], read["file"])
        os.unlink(self.flag)
        self.assertEqual(waits.read_until("ERROR")[0][:3], ["ERROR", "1", "CANCELLED"])
        self.assertEqual(waits.answer()[1][:2], ["DONE", "2"])
        self.assertRegex(daemon.read_log(), re.escape(wanted) + r"ended after \d+ s, continuing\n")
        self.assertEqual(status_of(other)["engine"]["totals"]["cancelled"], 2)
        self.assertNotIn("hanging_read", status_of(other)["engine"])
        self.assertEqual(daemon.terminate(), 0, daemon.read_log())


    def test_of_a_mirror_stops_nobody(self):
        mirror = os.path.join(Daemon(self).folder, "mirror")
        shutil.copytree(MINI, mirror)
        daemon = self.start(mirror, "--mirror", mirror)
        client, other = daemon.connect(), daemon.connect()
        client.submit(1, "The hummingbird", 40)
        read = self.wait_for_hang(other)
        self.assertTrue(read["file"].startswith(mirror), read)
        answer, last = client.answer()
        self.assertEqual(last[0], "DONE")
        client.submit(2, "The hummingbird", 40)
        self.assertEqual(client.answer()[0], answer)
        self.assertTrue(os.path.exists(self.flag))
        disks = {disk["folder"]: disk for disk in status_of(other)["engine"]["disks"]}
        self.assertEqual(disks[mirror]["state"], "left out")
        self.assertRegex(daemon.read_log(), re.escape(mirror) + r"/experts-\S+ read of \d+ bytes at "
                         r"\d+: no answer for \d s; reading from the other disks, ")
        os.unlink(self.flag)
        wait_until(lambda: "hanging_read" not in status_of(other)["engine"], "the mirror to answer")
        client.submit(3, "The hummingbird", 40)
        self.assertEqual(client.answer()[0], answer)
        self.assertEqual(daemon.terminate(), 0, daemon.read_log())


class Requests(unittest.TestCase):
    def test_sigterm_lets_a_running_request_end(self):
        daemon = Daemon(self).start_ready()
        client, keeper = daemon.connect(), daemon.connect()
        client.submit(1, "a", LONG_TOKENS, HOT, "seed=1")
        # Far more than can be done before the late one comes: until it leaves, the daemon stays.
        for number in range(1, 41):
            keeper.submit(number, "a", LONG_TOKENS, HOT, f"seed={number}")
        client.read_until("DATA")
        daemon.process.send_signal(signal.SIGTERM)
        late = daemon.connect()

        def is_draining():
            late.send("PING\n")
            return b'"state":"draining"' in late.read()[1]
        wait_until(is_draining, "the signal to arrive")
        late.submit(1, "a", 1)
        self.assertEqual(late.answer()[1][:3], ["ERROR", "1", "DRAINING"])
        keeper.close()
        text, last = client.answer()
        self.assertEqual(last[0], "DONE")
        self.assertIn(f"completion={LONG_TOKENS}", last)
        self.assertTrue(text)
        self.assertEqual(daemon.process.wait(LIMIT_S), 0, daemon.read_log())
        self.assertFalse(os.path.exists(daemon.path))

    def test_a_prompt_that_is_too_large_is_refused_and_the_next_one_served(self):
        daemon = Daemon(self).start_ready()
        client = daemon.connect()
        client.submit(1, "x" * (9 << 20))
        self.assertEqual(client.answer()[1][:3], ["ERROR", "1", "TOO_LARGE"])
        client.submit(2, "a", 4)
        self.assertEqual(client.answer()[1][:2], ["DONE", "2"])
        client.send(f"SUBMIT 3 - {65 << 20} 4 0 1\n")
        self.assertEqual(client.answer()[1][:3], ["ERROR", "3", "BAD_FRAME"])
        self.assertEqual(client.read()[0], [""], "too much to read it all: closed")

    def test_numbers_of_any_length_are_taken_and_broken_text_is_refused_by_its_place(self):
        client = Daemon(self).start_ready().connect()
        chat = ('{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f",'
                '"parameters":{"maximum":100000000000000000000}}]}')
        client.submit(1, chat, 4, 0, "fmt=chat")
        self.assertEqual(client.answer()[1][:2], ["DONE", "1"])
        client.submit(2, '{"messages":"\\ud800"}', 4, 0, "fmt=chat")
        last = client.answer()[1]
        self.assertEqual(last[:3], ["ERROR", "2", "BAD_VALUE"])
        self.assertIn("at byte 13", " ".join(last))

    def test_prompts_stay_within_the_plan(self):
        daemon = Daemon(self).start_ready("--memory", "200M")
        status = json.loads(subprocess.check_output([GLMCTL, "--socket", daemon.path, "status",
                                                     "--json"]))
        memory = status["engine"]["memory"]
        most = memory["prompt_bytes_max"]
        self.assertLess(most, 1 << 20, "a small budget takes small prompts")
        references = '{"type":"tool_reference","name":"f"}' + ',{"name":"f"}' * 8000
        for prompt, keys, wanted in (
                # Each reference prints the tool: 800 MB of text.
                ('{"tools":[{"name":"f","description":"%s"}],"messages":[{"role":"tool",'
                 '"content":[%s]}]}' % ("x" * 100000, references), "fmt=chat", "CONTEXT_EXCEEDED"),
                ('{"messages":[{"role":"user","content":[%s""]}]}' % ('"",' * (most // 3 - 40)),
                 "fmt=chat", "DONE"),
                ('{"messages":[{"role":"user","content":[%s0]}]}' % ("0," * (most // 2 - 40)),
                 "fmt=chat", "BAD_VALUE"),
                ('{"messages":[%s0]}' % ("0," * (most // 2 - 20)), "fmt=chat", "BAD_VALUE"),
                ("[%s1]" % ("1," * (most // 2 - 20)), "fmt=tokens", "CONTEXT_EXCEEDED"),
                ("a" * most, "", "CONTEXT_EXCEEDED"),
                ("a" * (most + 1), "", "TOO_LARGE")):
            client = daemon.connect()
            client.submit(1, prompt, 1, keys=keys)
            self.assertIn(wanted, client.answer()[1])
        self.assertLess(daemon.memory_bytes("VmHWM"), memory["total_bytes"])

    def test_every_field_of_status_is_explained(self):
        daemon = Daemon(self).start_ready("--look-ahead", "on")
        client = daemon.connect()
        client.submit(1, "The hummingbird", 8)
        client.answer()

        status = json.loads(subprocess.check_output([GLMCTL, "--socket", daemon.path, "status",
                                                     "--json"]))
        self.assertIn("head_seconds", status["engine"]["speed"])
        self.assertEqual(unexplained_fields(status), [])

    def test_a_disk_that_is_slow_is_not_rated_as_one_that_is_busy(self):
        budget = ["--context", "2048", "--sessions", "1"]
        refused = subprocess.run([GLMD, "--plan", "--memory", "1M", "--threads", "1", *budget],
                                 capture_output=True, text=True, timeout=LIMIT_S, check=False)
        floor_bytes = int(re.search(r"wanted at least (\d+) bytes", refused.stderr).group(1))
        # Room for half of the experts, and so for many reads at a time; most come alone all the same.
        daemon = Daemon(self).start_ready("--memory", str(floor_bytes + 2_000_000), "--reader",
                                          "threads", *budget, read_delay_ms=5)
        with open(os.path.join(ROOT, "models", "mini", "heldout.txt"), encoding="utf-8") as file:
            prompt = file.read(3000)
        client = daemon.connect()
        client.submit(1, prompt, 100, HOT, "seed=7")
        self.assertEqual(client.answer()[1][0], "DONE")
        speed = json.loads(subprocess.check_output([GLMCTL, "--socket", daemon.path, "status",
                                                    "--json"]))["engine"]["speed"]
        self.assertGreater(speed["disk_seconds"], speed["arithmetic_seconds"])
        self.assertLess(speed["achieved_of_bound"],
                        0.8 * speed["disk_seconds"] / speed["pass_seconds"])

    def test_who_leaves_changes_nothing_for_who_stays(self):
        daemon = Daemon(self).start_ready("--context", "4096", "--sessions", "4")
        keys = "seed=7"
        alone = daemon.connect()
        alone.submit(1, "The hummingbird", 200, HOT, keys)
        expected, last = alone.answer()
        self.assertIn("completion=200", last)

        stays, in_decode, in_prefill = (daemon.connect() for _ in range(3))
        in_decode.submit(1, "b", LONG_TOKENS, HOT, "seed=2")
        in_decode.read_until("DATA")
        stays.submit(1, "The hummingbird", 200, HOT, keys)
        in_prefill.submit(1, "word " * 3000, 4)
        in_prefill.read_until("ACCEPT")
        in_prefill.close()
        in_decode.close()
        text, last = stays.answer()
        self.assertEqual((text, last[0]), (expected, "DONE"))
        status = daemon.connect()

        def is_idle():
            status.send("STATUS\n")
            return b'"active":0' in status.read()[1]
        wait_until(is_idle, "the abandoned requests to end")


class Idle(unittest.TestCase):
    def test_half_a_line_and_half_a_payload_end_in_time_and_waiting_costs_nothing(self):
        daemon = Daemon(self).start_ready()
        line, payload, quiet = (daemon.connect() for _ in range(3))
        quiet.send("PING\n")
        quiet.read()
        begin, cpu_begin = time.monotonic(), daemon.cpu_seconds()
        line.send("SUBM")
        payload.send("SUBMIT 1 - 100 4 0 1\nhalf")
        self.assertEqual(line.read()[0][:3], ["ERROR", "-", "BAD_LINE"])
        self.assertEqual(line.read()[0], [""])
        self.assertGreater(time.monotonic() - begin, 9)
        self.assertEqual(payload.read()[0][:3], ["ERROR", "1", "BAD_FRAME"])
        self.assertEqual(payload.read()[0], [""])
        waited = time.monotonic() - begin
        self.assertGreater(waited, 29)
        self.assertLess((daemon.cpu_seconds() - cpu_begin) / waited, 0.01)
        quiet.send("PING\n")
        self.assertEqual(quiet.read()[0][0], "INFO")


if __name__ == "__main__":
    sys.exit(unittest.main())
