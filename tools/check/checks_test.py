#!/usr/bin/env python3
"""Tests that each check passes a good tree and fails a bad one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
GOOD = {
    "lockstep/base/error.h": "#pragma once\n",
    "lockstep/train/trainer.cc": '#include "lockstep/base/error.h"\n',
    "lockstep/lockstep.h":
        '#pragma once\n#include "lockstep/train/run_training.h"\n',
    "tests/train/trainer_test.cc": '#include "lockstep/base/error.h"\n',
    ".clang-format": "BasedOnStyle: Google\n",
    "cmake/public_headers.txt":
        "lockstep/lockstep.h\n# [internal]\nlockstep/train/run_training.h\n",
    "lockstep/train/run_training.h": "#pragma once\n",
    "examples/a.cc": "int main() {}\n",
    "README.md": "[The API](docs/api.md#all)\n\n    lockstep run --rest 1 -- ./a\n"
                 "<!-- quotes examples/a.cc -->\n```cpp\nint main() {}\n```\n",
    "docs/api.md": "## All\n\n| `lockstep/lockstep.h` | all |\n"
                   "| `lockstep/base/version.h` | the version |\n",
}


class Checks(unittest.TestCase):

    def run_check(self, name, files, *options):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**GOOD, **files}.items():
                target = pathlib.Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            done = subprocess.run(
                [sys.executable, HERE / f"{name}.py", folder, *options],
                capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def expect_finding(self, name, files, *words):
        code, output = self.run_check(name, files)
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)

    def test_all_pass_a_good_tree(self):
        for name in ("layers", "layout", "pitfalls", "public_headers", "format",
                     "pages"):
            code, output = self.run_check(name, {})
            self.assertEqual(code, 0, output)

    def test_pitfalls_finds_a_loop_that_runs_in_one_thread(self):
        self.expect_finding(
            "pitfalls",
            {"lockstep/train/a.cc": "at::parallel_for(0, n, 1, task);\n"},
            "lockstep/train/a.cc:1", "one thread", "intra_op_for")

    def test_pitfalls_finds_what_follows_the_locale(self):
        for code in ("std::strtod(text, nullptr)", "std::stof(text)",
                     "json::parse(text)", 'std::printf("%.2f\\n", x)',
                     'fmt::format("{:L}", x)'):
            self.expect_finding(
                "pitfalls", {"lockstep/train/a.cc": f"auto a = {code};\n"},
                "lockstep/train/a.cc:1", "locale")

    def test_pitfalls_finds_a_file_that_may_be_a_pipe(self):
        for code in ("std::ifstream file(path)", 'std::fopen(path, "r")',
                     "::open(path.c_str(), O_RDONLY | O_CLOEXEC)"):
            self.expect_finding(
                "pitfalls", {"lockstep/train/a.cc": f"auto a = {code};\n"},
                "lockstep/train/a.cc:1", "pipe", "open_regular_file")

    def test_pitfalls_finds_a_wait_that_old_libraries_lack(self):
        for code in ("changed_.wait(lock, is_done);", "changed_.wait(\n    lock);"):
            self.expect_finding(
                "pitfalls", {"lockstep/train/a.cc": code + "\n"},
                "lockstep/train/a.cc:1", "gcc 12", "wait_until()")

    def test_pitfalls_finds_an_error_with_two_tags(self):
        self.expect_finding(
            "pitfalls",
            {"lockstep/train/a.cc": 'log_warning("train", error.what());\n'},
            "lockstep/train/a.cc:1", "a component and a code", "text_of()")

    def test_layers_finds_an_include_of_a_lower_layer(self):
        self.expect_finding(
            "layers",
            {"lockstep/base/a.cc": '\n#include "lockstep/train/run_training.h"\n'},
            "lockstep/base/a.cc:2", "train/")

    def test_layers_finds_an_include_of_a_lower_room(self):
        header = '#include "lockstep/launch/agent/agent.h"\n'
        for path in ("lockstep/launch/workers/a.cc", "lockstep/comm/a.cc"):
            self.expect_finding("layers", {path: header}, path, "launch/agent/")
        page = '#include "lockstep/tools/page/page.h"\n'
        self.expect_finding(
            "layers", {"lockstep/tools/charts/a.cc": page},
            "tools/charts/ includes tools/page/")
        code, output = self.run_check(
            "layers", {"lockstep/launch/run.cc": header,
                       "lockstep/launch/agent/b.cc": header})
        self.assertEqual(code, 0, output)

    def test_layers_finds_an_include_of_a_component(self):
        header = '#include "lockstep/lm/models/gelu.h"\n'
        for path in ("lockstep/cli/a.cc", "lockstep/tools/page/a.cc"):
            self.expect_finding("layers", {path: header}, path,
                                "lm/, a component that a build can leave out")
        code, output = self.run_check(
            "layers", {"lockstep/lm/task/a.cc": header})
        self.assertEqual(code, 0, output)

    def test_layers_finds_torch_where_there_may_be_none(self):
        for folder in ("base", "store", "shm", "tcp", "control",
                       "launch", "cli/start", "tools/top"):
            for header in ("torch/torch.h", "ATen/ATen.h", "c10/util/a.h"):
                self.expect_finding(
                    "layers",
                    {f"lockstep/{folder}/a.h": f"#include <{header}>\n"},
                    f"lockstep/{folder}/a.h:1", header)

    def test_layers_allows_torch_elsewhere(self):
        code, output = self.run_check(
            "layers", {"lockstep/comm/a.h": "#include <torch/torch.h>\n"})
        self.assertEqual(code, 0, output)

    def test_layers_finds_a_folder_that_is_no_layer(self):
        self.expect_finding("layers", {"lockstep/misc/a.h": ""}, "misc/a.h")

    def test_layers_finds_a_relative_include(self):
        self.expect_finding(
            "layers", {"lockstep/base/a.cc": '#include "error.h"\n'},
            "error.h")

    def test_layers_finds_the_umbrella_in_a_layer(self):
        self.expect_finding(
            "layers",
            {"lockstep/cli/a.cc": '#include "lockstep/lockstep.h"\n'},
            "umbrella")

    def test_public_headers_finds_one_that_is_not_listed(self):
        self.expect_finding(
            "public_headers",
            {"lockstep/train/run_training.h": '#include "lockstep/base/error.h"\n'},
            "lockstep/base/error.h", "not listed")

    def test_public_headers_finds_one_that_nobody_includes(self):
        self.expect_finding(
            "public_headers",
            {"lockstep/lockstep.h": "#pragma once\n"},
            "no public header includes lockstep/train/run_training.h")

    def test_public_headers_finds_one_without_documentation(self):
        self.expect_finding("public_headers", {"docs/api.md": ""},
                            "no row for lockstep/lockstep.h")

    def test_public_headers_finds_too_many(self):
        names = [f"lockstep/base/h{i}.h" for i in range(100)]
        self.expect_finding(
            "public_headers",
            {**{name: "#pragma once\n" for name in names},
             "cmake/public_headers.txt": "\n".join(names) + "\n",
             "docs/api.md": "".join(f"| `{name}` | x |\n" for name in
                                    [*names, "lockstep/base/version.h"])},
            "101 public headers")

    def test_public_headers_finds_torch_that_is_not_included(self):
        self.expect_finding(
            "public_headers",
            {"lockstep/train/run_training.h": "void f(torch::Tensor x);\n"},
            "lockstep/train/run_training.h", "torch")

    def test_layout_only_warns_of_a_long_file(self):
        for lines, is_long in ((700, False), (701, True)):
            code, output = self.run_check(
                "layout", {"tests/train/a.py": "\n" * lines})
            self.assertEqual(code, 0, output)
            self.assertEqual(f"warning: tests/train/a.py: {lines} lines" in output,
                             is_long, output)

    def test_layout_finds_a_wide_line(self):
        self.expect_finding(
            "layout", {"lockstep/base/a.cc": "// " + "x" * 78 + "\n"},
            "a.cc:1: 81 columns")

    def test_layout_counts_columns_not_bytes(self):
        code, output = self.run_check(
            "layout", {"lockstep/base/a.cc": "// " + "é" * 77 + "\n"})
        self.assertEqual(code, 0, output)

    def test_layout_finds_conditional_code(self):
        self.expect_finding(
            "layout", {"lockstep/base/a.cc": "#ifdef USE_CUDA\n#endif\n"},
            "a.cc:1: conditional")

    def test_layout_allows_a_condition_on_the_platform(self):
        code, output = self.run_check(
            "layout",
            {"lockstep/base/a.cc": "#if defined(__x86_64__)\n#endif\n"})
        self.assertEqual(code, 0, output)

    def test_layout_finds_a_header_that_is_unguarded(self):
        self.expect_finding(
            "layout", {"lockstep/base/a.h": "\n"}, "no #pragma once")

    def test_layout_finds_tests_that_mirror_nothing(self):
        self.expect_finding(
            "layout", {"tests/misc/a_test.cc": ""}, "tests/misc")

    def test_pages_finds_a_link_to_nothing(self):
        for link in ("docs/none.md", "docs/api.md#none"):
            self.expect_finding("pages", {"README.md": f"[a]({link})\n"},
                                "README.md: links to", "none")

    def test_pages_finds_a_quote_that_differs(self):
        self.expect_finding("pages", {"examples/a.cc": "int main() { }\n"},
                            "does not quote examples/a.cc as it is")
        for head in ("none.cc", "examples/a.cc from void"):
            page = f"<!-- quotes {head} -->\n```cpp\nint main() {{}}\n```\n"
            self.expect_finding("pages", {"README.md": page}, "does not quote")
        self.expect_finding("pages", {"README.md": "<!-- quotes a -->\ntext\n"},
                            "not followed by a block of code")

    def test_pages_finds_commands_and_options_that_do_not_exist(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "lockstep")
            program.write_text("#!/bin/sh\ncat <<'END'\nLockstep\n\nCommands:\n"
                               "run\n  Runs.\n  Options:\n    -r,--rest N [1]  as"
                               " --no\n                 --no does\ntop\n  Shows.\n"
                               "END\n", encoding="utf-8")
            program.chmod(0o755)
            for command, finding in (
                    ("run --rest 1 -- ./a --no", ""),
                    ("run --no 1", "lockstep run has no option --no"),
                    ("run -- lockstep top --x=1", "lockstep top has no option --x"),
                    ("walk", "no command lockstep walk")):
                page = {"README.md": f"    lockstep {command}\n"}
                code, output = self.run_check("pages", page, "--program", str(program))
                self.assertEqual(code, 1 if finding else 0, output)
                self.assertIn(finding, output)

    def test_format_finds_a_file_laid_out_otherwise(self):
        self.expect_finding(
            "format", {"lockstep/base/a.cc": "int  f( ) ;\n"}, "a.cc:1")


if __name__ == "__main__":
    unittest.main()
