#!/usr/bin/env python3
"""Tests which statements tools/mutate_streams.py finds, and how it removes
them."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import stream_program, test_run  # noqa: E402
from mutants import stream_sites as sites  # noqa: E402


def found_in(code, path="lockstep/device/x.cc"):
    return [(site.kind, site.text) for site in sites.find_sites(path, code)]


def instrumented(code, path="lockstep/device/x.cc"):
    found = sites.find_sites(path, code)
    for number, site in enumerate(found):
        site.number = 7 + number
    text = sites.instrument(code, found)
    return text.partition("#line 1\n")[2]


class Sites(unittest.TestCase):

    def test_finds_each_kind_once(self):
        code = """
void f() {
  if (fence_) fence_->wait();
  event_.record(current_stream(device_));
  mark->block(VirtualGuardImpl(device_.type()).getStream(device_));
  const c10::StreamGuard stream(stream_.value());
  gradient.tensor().record_stream(
      getStream(device));
  if (!device.is_cpu()) accelerator::synchronize(device);
  current_stream(device).synchronize();
  stream_ = accelerator::bind_thread(device_);
  for (const auto& t : all) wait_for_stream_of(t);
}
"""
        self.assertEqual(found_in(code), [
            ("fence", "fence_->wait();"),
            ("event", "event_.record(current_stream(device_));"),
            ("event", "mark->block(VirtualGuardImpl(device_.type())"
                      ".getStream(device_));"),
            ("guard", "const c10::StreamGuard stream(stream_.value());"),
            ("record_stream",
             "gradient.tensor().record_stream( getStream(device));"),
            ("synchronization", "accelerator::synchronize(device);"),
            ("synchronization", "current_stream(device).synchronize();"),
            ("binding", "stream_ = accelerator::bind_thread(device_);"),
            ("synchronization", "wait_for_stream_of(t);"),
        ])

    def test_leaves_other_code_alone(self):
        code = """
// fence_->wait() orders it.
void wait_for_stream_of(const at::Tensor& tensor);
void copy_and_wait(const at::Tensor& to, const at::Tensor& from) {
  log("fence_->wait();");
  reduction.block(group.blocks()[b], in_place);
  queue.wait(lock);
}
c10::OptionalStreamGuard enter() const;
"""
        self.assertEqual(found_in(code), [])
        self.assertEqual(instrumented(code), "")

    def test_refuses_what_it_can_not_remove(self):
        with self.assertRaisesRegex(ValueError, "x.cc:1: .*not a statement"):
            found_in("int f() { return g(fence_->wait()); }")

    def test_removes_a_statement_and_keeps_the_lines(self):
        code = "void f() {\n  if (a) t.record_stream(\n      s); else g();\n}\n"
        text = instrumented(code)
        self.assertIn("if (a) { if (lockstep_mutant::keeps(7)) { "
                      "t.record_stream( s); } }", text)
        self.assertIn("else g();", text)
        self.assertEqual(text.count("\n"), code.count("\n"))

    def test_leaves_a_guard_out(self):
        text = instrumented("void f() { const c10::DeviceGuard guard(d); }")
        self.assertIn("const std::optional<c10::DeviceGuard> guard = "
                      "lockstep_mutant::keeps(7) ? "
                      "std::optional<c10::DeviceGuard>(std::in_place, d) : "
                      "std::optional<c10::DeviceGuard>();", text)

    def test_makes_a_fence_that_records_nothing(self):
        text = instrumented("void f() { std::optional<accelerator::Fence> "
                            "fence(device_); }")
        self.assertIn("const lockstep_mutant::Muted muted(7); return "
                      "std::optional<accelerator::Fence>(std::in_place, "
                      "device_);", text)

    def test_copies_without_a_wait(self):
        text = instrumented("void f() { copy_and_wait(a, b); }")
        self.assertIn("else { lockstep_mutant::copy_only(a, b); }", text)

    def test_replaces_a_call_whose_value_is_used(self):
        text = instrumented(
            "void f() { const auto ready = stream_.mark(); }")
        self.assertIn("(lockstep_mutant::keeps(7) ? stream_.mark() : nullptr)",
                      text)

    def test_leaves_what_is_cudas_to_a_gpu(self):
        site, = sites.find_sites("lockstep/device/cuda/cuda.cc",
                                 "void f() { stream.synchronize(); }")
        self.assertTrue(site.needs_gpu)

    def test_can_remove_every_site_of_this_tree(self):
        found = stream_program.find_all_sites(ROOT)
        self.assertGreater(len(found), 20)
        for path in {site.file for site in found}:
            code = (ROOT / path).read_text(encoding="utf-8")
            text = sites.instrument(
                code, [site for site in found if site.file == path])
            self.assertEqual(text.partition("#line 1\n")[2].count("\n"),
                             code.count("\n"), path)


class Outcomes(unittest.TestCase):

    def test_names_the_test_that_failed_or_did_not_end(self):
        self.assertEqual(test_run.failed_test(
            "[ RUN      ] A.B\n[       OK ] A.B (1 ms)\n"
            "[ RUN      ] A.C\n[  FAILED  ] A.C (3 ms)\n"
            "[  FAILED  ] A.C\n"), "A.C")
        self.assertEqual(test_run.failed_test(
            "[ RUN      ] A.B\n[       OK ] A.B (1 ms)\n"
            "[ RUN      ] A.C\n"), "A.C")

    def test_shows_what_the_failed_test_printed(self):
        shown = test_run.report_of(
            "[ RUN      ] A.B\n[       OK ] A.B (1 ms)\n"
            "[ RUN      ] A.C\nx.cc:1: Failure\n[  FAILED  ] A.C (3 ms)\n"
            "[ RUN      ] A.D\n[  SKIPPED ] A.D (0 ms)\n")
        self.assertEqual(shown, "[ RUN      ] A.C\nx.cc:1: Failure\n"
                                "[  FAILED  ] A.C (3 ms)")


if __name__ == "__main__":
    unittest.main()
