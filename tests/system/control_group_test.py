#!/usr/bin/env python3
"""glmd in memory control groups: limits of its own group and of the one above make the plan, and
what changes while it serves changes the arena of experts, never an answer.

Needs to make groups below its own: root, and version 1, or version 2 in its root group, which
`tests/system/in_uml tests/system/control_group_test.py` has. The model has 512 experts of 416 KiB,
so that the arena is most of the plan."""

import atexit
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from daemon import BUILD, GLMD, LIMIT_S, Daemon, wait_until

MAKE_MODEL = os.path.join(BUILD, "bin", "glmd-make-model")
LAYERS = 5
MIB = 1 << 20
HOT = "1"
PROMPT = [4 + 7 * i % 500 for i in range(1000)]

# Of one version: the files of limits, then of use, peak, and kills.
VERSION_1 = ("memory.limit_in_bytes",), "memory.usage_in_bytes", "memory.max_usage_in_bytes", \
    "memory.oom_control"
VERSION_2 = ("memory.max", "memory.high"), "memory.current", "memory.peak", "memory.events"


def make_model():
    """The folder of a container with random weights, made once and removed at the end."""
    folder = tempfile.mkdtemp(prefix="glmd-test-")
    atexit.register(shutil.rmtree, folder)
    config = os.path.join(folder, "config.json")
    with open(config, "w", encoding="ascii") as file:
        json.dump({
            "model_type": "glm_moe_dsa", "vocab_size": 512, "hidden_size": 512,
            "intermediate_size": 512, "moe_intermediate_size": 512, "num_hidden_layers": LAYERS,
            "num_nextn_predict_layers": 0, "first_k_dense_replace": 1,
            "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
            "indexer_types": ["full"] * LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "qk_head_dim": 48, "v_head_dim": 32,
            "n_routed_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            "index_n_heads": 2, "index_head_dim": 32, "index_topk": 64, "hidden_act": "silu",
            "rms_norm_eps": 1e-05, "attention_bias": False, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 8000000.0},
            "rope_interleave": True, "indexer_rope_interleave": True, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "max_position_embeddings": 2048, "eos_token_id": [1],
            "pad_token_id": 0}, file)
    model = os.path.join(folder, "model")
    subprocess.run([MAKE_MODEL, "--config", config, "--threads", "1", model], check=True,
                   capture_output=True, timeout=LIMIT_S)
    return model


class Group:
    """A memory control group below that of this process, or below another one of ours."""

    def __init__(self, test, above=None, name="test"):
        root, self.version = above.place() if above else own_group()
        limits, self.current, self.peak, self.events = self.version or VERSION_2
        self.limits = limits
        self.unlimited = -1 if self.version is VERSION_1 else "max"
        self.folder = f"{root}/glmd-{name}-{os.getpid()}"
        try:
            os.mkdir(self.folder)
            self.read(self.current)
        except OSError as failure:
            test.skipTest(f"no memory control group can be made here: {failure}")
        test.addCleanup(lambda: wait_until(self.remove, "the group to be empty"))

    def place(self):
        if self.version is VERSION_2:  # what a group's children may limit
            self.write("cgroup.subtree_control", "+memory")
        return self.folder, self.version

    def remove(self):
        try:
            os.rmdir(self.folder)
        except OSError:
            return False
        return True

    def write(self, name, value):
        with open(f"{self.folder}/{name}", "w", encoding="ascii") as file:
            file.write(str(value))

    def read(self, name):
        with open(f"{self.folder}/{name}", encoding="ascii") as file:
            return file.read()

    def used_bytes(self):
        return int(self.read(self.current))

    def held_bytes(self):
        """Without files' pages, which the kernel drops when it needs others."""
        total = "total_" if self.version is VERSION_1 else ""
        files = re.findall(rf"^{total}(?:in)?active_file (\d+)$", self.read("memory.stat"), re.M)
        return self.used_bytes() - sum(int(one) for one in files)

    def leave(self, name, free_bytes):
        """Lowers a limit to that much more than is held. False where the kernel refuses: version 1,
        when it could not drop enough just then."""
        try:
            self.write(name, self.held_bytes() + free_bytes)
        except OSError:
            return False
        return True

    def oom_kills(self):
        return int(re.search(r"^oom_kill (\d+)$", self.read(self.events), re.M).group(1))

    def enter(self):
        self.write("cgroup.procs", os.getpid())


def total_of(log):
    return int(re.search(r"total +(\d+) bytes", log).group(1))


def own_group():
    """The folder of this process's memory group, and its version."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        entries = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in entries:
        if "memory" in controllers.split(","):
            return "/sys/fs/cgroup/memory" + path.rstrip("/"), VERSION_1
    for _, controllers, path in entries:
        if not controllers:
            return "/sys/fs/cgroup" + path.rstrip("/"), VERSION_2
    raise unittest.SkipTest("no control groups here")


class GroupTest(unittest.TestCase):
    model = None

    def setUp(self):
        self.above = Group(self)
        self.group = Group(self, self.above)
        if not GroupTest.model:
            GroupTest.model = make_model()

    def limits(self):
        """Each limit that there is: the group whose it is, and its name."""
        return [(group, name) for group in (self.group, self.above) for name in group.limits]

    def start(self, *arguments):
        daemon = Daemon(self).start_ready("--model", self.model, *arguments,
                                          preexec_fn=self.group.enter)
        self.client = daemon.connect()
        return daemon

    @contextlib.contextmanager
    def neighbour(self, held_bytes):
        """A process beside the daemon's group that holds so much by the time it is there."""
        group = Group(self, self.above, "other")
        hold = f"held = bytearray({held_bytes}); print(flush=True); import sys; sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, preexec_fn=group.enter) as process:
            process.stdout.readline()
            yield

    def answer(self):
        self.client.submit(1, json.dumps(PROMPT), 50, HOT, "seed=1 fmt=tokens")
        text, words = self.client.answer()
        self.assertEqual(words[0], "DONE", words)
        return text

    def arena_bytes(self):
        """That the engine has now."""
        self.client.send("STATUS\n")
        engine = json.loads(self.client.read()[1])["engine"]
        return engine["experts"].get("arena_bytes", engine["memory"]["arena_bytes"])


class Planned(GroupTest):
    def test_a_limit_makes_the_plan_and_anonymous_memory_stays_below_it(self):
        for group, name in self.limits():
            limit = 224 * MIB
            group.write(name, limit)
            daemon = self.start()
            log = daemon.read_log()
            self.assertRegex(log, rf"budget +\d+ bytes .*{group.folder}/{name}: {limit} bytes ")
            total = total_of(log)
            self.assertLessEqual(total, limit)
            clients = [daemon.connect() for _ in range(3)]
            for seed, client in enumerate(clients):
                client.submit(1, json.dumps(PROMPT), 50, HOT, f"seed={seed} fmt=tokens")
            peak = 0
            for client in clients:
                while (words := client.read()[0])[0] not in ("DONE", "ERROR", ""):
                    peak = max(peak, daemon.memory_bytes("RssAnon"))
                self.assertEqual(words[0], "DONE", words)
            self.assertGreater(peak, total // 2)
            self.assertLessEqual(peak, total)
            self.assertEqual(group.oom_kills(), 0)
            daemon.terminate()
            group.write(name, group.unlimited)

    def test_what_others_hold_below_the_same_limit_is_not_planned(self):
        limit = 320 * MIB
        self.above.write(self.above.limits[0], limit)
        with self.neighbour(128 * MIB):
            daemon = self.start()
            self.assertLessEqual(total_of(daemon.read_log()), limit - 128 * MIB)
            self.answer()
            self.assertEqual(self.above.oom_kills(), 0)
            daemon.terminate()

    def test_below_the_floor_every_term_of_the_sum_is_printed_and_nothing_starts(self):
        for group, name in self.limits():
            group.write(name, 48 * MIB)
            for arguments in ([], ["--plan"]):
                result = subprocess.run([GLMD, "--model", self.model, *arguments],
                                        capture_output=True, text=True, timeout=LIMIT_S,
                                        check=False, preexec_fn=self.group.enter)
                self.assertEqual(result.returncode, 75, result.stderr)
                self.assertIn(f"{group.folder}/{name}: {48 * MIB} bytes", result.stderr)
                for term in ("budget", "dense weights", "KV cache", "scratch", "reserve",
                             "expert arena", "total", "remedy"):
                    self.assertIn(term, result.stderr)
            group.write(name, group.unlimited)


class ChangedLimit(GroupTest):
    """Limits that change while glmd serves."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start("--memory", "320M")
        self.text = self.answer()  # by now the arena is full of experts
        self.full_bytes = self.arena_bytes()

    def fall_far(self, group):
        """A memory.high far below what is held: the kernel pauses every thread that takes a page
        until enough was given back."""
        if "memory.high" not in group.limits:
            self.skipTest("version 1 has no memory.high")
        limit = group.held_bytes() - 64 * MIB
        group.write("memory.high", limit)
        self.assertEqual(self.answer(), self.text)
        wait_until(lambda: group.held_bytes() <= limit, "memory to be given back")
        self.assertEqual(self.answer(), self.text)
        self.assertEqual(group.oom_kills(), 0)


class Lowered(ChangedLimit):
    def test_close_to_a_limit_the_arena_shrinks_by_steps_and_answers_go_on(self):
        for group in (self.group, self.above):
            name = group.limits[0]
            for _ in range(2):
                arena_bytes = self.arena_bytes()
                wait_until(lambda: group.leave(name, 4 * MIB), "the limit to be set")
                self.assertEqual(self.answer(), self.text)
                wait_until(lambda: self.arena_bytes() < arena_bytes, "the arena to shrink")
                self.assertIn(f"{group.folder}/{name}", self.daemon.read_log().splitlines()[-1])
            self.assertEqual(group.oom_kills(), 0)
            group.write(name, group.unlimited)
        self.assertLess(self.daemon.memory_bytes("RssAnon"), self.full_bytes)
        self.assertEqual(self.answer(), self.text)

    def test_a_memory_high_far_below_what_is_held_is_reached(self):
        self.fall_far(self.group)
        self.assertLess(self.arena_bytes(), self.full_bytes - 64 * MIB)
        # What the kernel keeps it from giving back at once is not taken twice.
        self.assertGreater(self.arena_bytes(), self.full_bytes - 112 * MIB)
        self.group.write("memory.max", int(self.group.read("memory.high")) + 8 * MIB)
        self.assertEqual(self.answer(), self.text)
        self.assertEqual(self.group.oom_kills(), 0)

    def test_a_neighbour_that_grows_below_a_memory_high_gets_what_the_arena_gives_back(self):
        if "memory.high" not in self.above.limits:
            self.skipTest("version 1 has no memory.high")
        self.above.write("memory.high", self.above.held_bytes() + 48 * MIB)
        with self.neighbour(96 * MIB):
            wait_until(lambda: self.arena_bytes() < self.full_bytes, "the arena to shrink")
            self.assertEqual(self.answer(), self.text)
            self.assertEqual(self.above.oom_kills(), 0)


class Cold(GroupTest):
    def test_a_limit_lowered_before_the_arena_is_full_bounds_what_it_takes(self):
        for group in (self.group, self.above):
            daemon = self.start("--memory", "320M")
            group.write(group.limits[0], group.held_bytes() + 96 * MIB)
            wait_until(lambda: "expert arena:" in daemon.read_log(), "the arena to be bounded", 20)
            self.answer()
            self.assertEqual(group.oom_kills(), 0)
            self.assertLessEqual(int(group.read(group.peak)), 320 * MIB)
            daemon.terminate()
            group.write(group.limits[0], group.unlimited)


class Raised(ChangedLimit):
    def test_a_memory_high_of_the_group_above_is_reached_and_raised_lets_the_arena_grow(self):
        self.fall_far(self.above)
        small_bytes = self.arena_bytes()
        anonymous_bytes = self.daemon.memory_bytes("RssAnon")
        self.above.write("memory.high", self.above.unlimited)
        wait_until(lambda: self.arena_bytes() > small_bytes, "the arena to grow")
        self.assertEqual(self.answer(), self.text)
        self.assertGreater(self.daemon.memory_bytes("RssAnon"), anonymous_bytes)


if __name__ == "__main__":
    sys.exit(unittest.main())
