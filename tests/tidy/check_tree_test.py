#!/usr/bin/env python3
"""Plants faults in a small tree and expects check_tree.py to name each."""

import os
import subprocess
import sys
import tempfile
import unittest

CHECK_TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_tree.py")

CLEAN = {
    "protocol/CMakeLists.txt": "glmd_library(glmd_protocol SOURCES request.cpp)\n",
    "protocol/request.h": "#include <string>\n",
    "protocol/request.cpp": '#include "protocol/request.h"\n',
    "daemon/CMakeLists.txt": "add_executable(glmd main.cpp)\n",
    "daemon/main.cpp": '#include "server/server.h"\n#include "model/model.h"\n',
    "daemon/model/CMakeLists.txt": "glmd_library(glmd_model SOURCES model.cpp)\n",
    "daemon/model/model.h": '#include "platform/result.h"\n',
    "daemon/model/model.cpp": '#include "model/model.h"\n\n#include "kernels/table.h"\n',
    "daemon/platform/result.h": "#include <fmt/format.h>\n",
    "daemon/kernels/CMakeLists.txt":
        "foreach(name dot)\n  list(APPEND sources avx2/${name}.cpp)\nendforeach()\n",
    "daemon/kernels/table.h": "#include <stdint.h>\n",
    "daemon/kernels/avx2/dot.cpp": '#include "kernels/table.h"\n#include <immintrin.h>\n',
    "daemon/server/CMakeLists.txt": "glmd_library(glmd_server SOURCES server.cpp)\n",
    "daemon/server/server.h": "#include <string>\n",
    "daemon/server/server.cpp": '#include "server/server.h"\n#include <uv.h>\n',
    "tests/model/CMakeLists.txt": "glmd_test(test_model SOURCES model_test.cpp)\n",
    "tests/model/model_test.cpp": '#include "model/model.h"\n',
}


def findings(extra):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**CLEAN, **extra}.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, CHECK_TREE, root], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout


class CheckTree(unittest.TestCase):
    def expect_finding(self, extra, *words):
        code, output = findings(extra)
        self.assertEqual(code, 1, output)
        self.assertEqual(len(output.splitlines()), 1, output)
        for word in words:
            self.assertIn(word, output)

    def test_a_clean_tree_has_no_findings(self):
        self.assertEqual(findings({}), (0, ""))

    def test_a_wrong_arrow_is_named(self):
        self.expect_finding(
            {"daemon/platform/result.h": '#include <string>\n#include "model/model.h"\n'},
            "daemon/platform/result.h:2", "daemon/platform may not include daemon/model/model.h")

    def test_a_wrong_arrow_by_a_relative_path_is_named(self):
        self.expect_finding({"daemon/platform/result.h": '#include "../kernels/table.h"\n'},
                            "daemon/platform may not include daemon/kernels/table.h")

    def test_the_server_sees_only_messages_and_channel(self):
        extra = {"daemon/generation/messages.h": "", "daemon/generation/engine.h": "",
                 "daemon/server/server.cpp":
                     '#include "server/server.h"\n#include "generation/messages.h"\n'
                     '#include "generation/engine.h"\n'}
        self.expect_finding(extra, "daemon/server/server.cpp:3", "daemon/generation/engine.h")

    def test_the_client_does_not_see_the_model(self):
        extra = {"client/CMakeLists.txt": "glmd_library(x SOURCES a.cpp)\n",
                 "client/a.cpp": '#include "protocol/request.h"\n#include "model/model.h"\n'}
        self.expect_finding(extra, "client/a.cpp:2")

    def test_only_some_tools_see_the_model(self):
        source = '#include "model/model.h"\n'
        names = "add_executable(x main.cpp)\n"
        self.assertEqual(findings({"tools/eval/CMakeLists.txt": names,
                                   "tools/eval/main.cpp": source})[0], 0)
        self.expect_finding({"tools/convert/CMakeLists.txt": names,
                             "tools/convert/main.cpp": source}, "tools/convert/main.cpp:1")

    def test_a_missing_include_is_named(self):
        self.expect_finding({"daemon/main.cpp": '#include "server/server.h"\n#include "gone.h"\n'},
                            "daemon/main.cpp:2", "gone.h")

    def test_intrinsics_outside_their_folders_are_named(self):
        self.expect_finding({"daemon/kernels/table.h": "#include <immintrin.h>\n"}, "intrinsics")

    def test_libuv_outside_the_server_is_named(self):
        self.expect_finding({"daemon/model/model.h":
                             '#include "platform/result.h"\n#include <uv.h>\n'}, "libuv")

    def test_the_protocol_uses_only_the_standard_library(self):
        self.expect_finding({"protocol/request.h": "#include <fmt/format.h>\n"},
                            "protocol/request.h:1")

    def test_a_source_nobody_builds_is_named(self):
        self.expect_finding({"daemon/model/lost.cpp": ""}, "daemon/model/lost.cpp", "nobody")

    def test_a_source_in_a_comment_of_cmake_is_not_built(self):
        extra = {"tests/model/CMakeLists.txt": "# model_test.cpp\n"}
        self.expect_finding(extra, "tests/model/model_test.cpp")

    def test_a_header_nobody_includes_is_named(self):
        self.expect_finding({"daemon/model/lost.h": ""}, "daemon/model/lost.h")

    def test_leftovers_are_named(self):
        for marker in ("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK", "not imple" "mented"):
            self.expect_finding({"protocol/request.h": f"// {marker}: later\n"}, marker)

    def test_paths_of_a_machine_and_registry_hosts_are_named(self):
        self.expect_finding({"README.md": "see /ho" "me/me/x\n"}, "README.md:1", "machine")
        self.expect_finding({"README.md": "from py" "pi.org\n"}, "README.md:1", "registry")

    def test_a_folder_without_a_meaning_is_named(self):
        extra = {"daemon/model/utils/CMakeLists.txt": ""}
        self.expect_finding(extra, "daemon/model/utils")

    def test_a_new_folder_of_the_daemon_needs_its_arrows(self):
        self.expect_finding({"daemon/extra/CMakeLists.txt": ""}, "daemon/extra")


if __name__ == "__main__":
    unittest.main()
