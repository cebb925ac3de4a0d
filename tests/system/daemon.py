"""A glmd of its own on a socket in a fresh folder, and clients that speak the line protocol."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.environ.get("GLMD_BUILD", os.path.join(ROOT, "build", "release"))
GLMD = os.path.join(BUILD, "bin", "glmd")
MINI = os.path.join(BUILD, "share", "glmd", "models", "mini")
GLMCTL = os.path.join(BUILD, "bin", "glmctl")
SLOW_READS = os.environ.get("GLMD_SLOW_READS",
                            os.path.join(BUILD, "tests", "system", "libslow_reads.so"))
LIMIT_S = 60


def wait_until(condition, what, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s} s for {what}")
        time.sleep(0.02)
    return result


class Client:
    """One connection. read() gives the next frame as (words, payload); [""] at the end."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.input = self.socket.makefile("rb")

    def send(self, text):
        self.socket.sendall(text.encode() if isinstance(text, str) else text)

    def submit(self, number, prompt, max_tokens="-", temperature="0", keys=""):
        prompt = prompt.encode()
        self.send(f"SUBMIT {number} - {len(prompt)} {max_tokens} {temperature} - {keys}".rstrip()
                  + "\n")
        self.send(prompt + b"\n")

    def read(self):
        words = self.input.readline().decode().rstrip("\n").split(" ")
        payload = b""
        if words[0] in ("DATA", "THINK", "INFO"):
            payload = self.input.read(int(words[2]) + 1)[:-1]
        return words, payload

    def read_until(self, *verbs):
        while True:
            words, payload = self.read()
            if words[0] in verbs or words[0] == "":
                return words, payload

    def answer(self):
        """The text of a request and the words of its last frame."""
        text = b""
        while True:
            words, payload = self.read()
            if words[0] == "DATA":
                text += payload
            if words[0] in ("DONE", "ERROR", ""):
                return text.decode(), words

    def close(self):
        self.input.close()
        self.socket.close()


class Daemon:
    """Started by start(); stopped by stop(), which a test adds to its clean-ups."""

    def __init__(self, test):
        self.test = test
        self.folder = tempfile.mkdtemp(prefix="glmd-test-")
        os.chmod(self.folder, 0o755)
        self.path = os.path.join(self.folder, "glmd.sock")
        self.log = os.path.join(self.folder, "log")
        self.process = None
        test.addCleanup(self.clean_up)

    def start(self, *arguments, program=GLMD, environment=None, read_delay_ms=0, threads=1,
              **popen):
        environment = {**os.environ, **(environment or {})}
        if read_delay_ms:
            environment["LD_PRELOAD"] = SLOW_READS
            environment["GLMD_TEST_READ_DELAY_MS"] = str(read_delay_ms)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [program, "--socket", self.path, "--threads", str(threads), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, **popen)
        return self

    def start_ready(self, *arguments, **popen):
        self.start(*arguments, **popen)
        code = subprocess.call([GLMCTL, "--socket", self.path, "wait-ready", "--timeout",
                                str(LIMIT_S)])
        self.test.assertEqual(code, 0, self.read_log())
        return self

    def connect(self):
        def attempt():
            self.test.assertIsNone(self.process.poll(), self.read_log())
            try:
                return Client(self.path)
            except (ConnectionRefusedError, FileNotFoundError):
                return None
        client = wait_until(attempt, "a connection")
        self.test.addCleanup(client.close)
        return client

    def read_log(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def terminate(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, name):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
        raise KeyError(name)

    def clean_up(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder)
