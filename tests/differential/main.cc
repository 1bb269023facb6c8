// The tests, and `test_differential fuzz`, which does the same for hours.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/differential/check.h"
#include "tests/differential/generator.h"
#include "tests/differential/isolation.h"
#include "tests/differential/shrink.h"

namespace lockstep::differential {
namespace {

struct Options {
  std::string kind = "dp";
  bool has_programs = false;
  uint64_t seed = 1;
  size_t cases = 1000;
  double seconds = 0;
  double deadline_s = 60;
  std::string with;
  std::string replay;
  bool has_processes = false;
  bool shrinks = false;
  bool shows = false;
  std::string found;
  std::string only;
  size_t most_findings = 20;
};

/// Returns the subject of a finding: its text without numbers.
std::string signature_of(const Verdict& verdict) {
  std::string text =
      verdict.detail.substr(0, verdict.detail.find(": off by")).substr(0, 80);
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  const size_t part = text.find("part.");
  if (part != std::string::npos) text.erase(part, 5);
  return verdict.category + text;
}

/// Returns the special features of a case.
std::string features_of(const Case& of) {
  std::set<std::string> features{of.mode, of.dtype, of.loss};
  for (const Event& event : of.history) {
    features.insert(event.what);
    if (!event.loss.empty()) features.insert(event.loss);
  }
  if (!of.flaw.empty()) features.insert(of.flaw);
  for (const Node& node : of.nodes) {
    for (const char* rare : {"track", "batch_norm", "dropout", "center"}) {
      if (node.operation == rare) features.insert(rare);
    }
  }
  const auto add = [&](bool has, const char* name) {
    if (has) features.insert(name);
  };
  add(of.registers_twice, "registered-twice");
  add(of.has_l2, "l2");
  add(of.has_residual, "residual");
  add(of.passes_gradient, "backward(gradient)");
  for (const ParameterSpec& spec : of.parameters) {
    add(spec.tied_to >= 0, "tied");
    add(!spec.dtype.empty(), "mixed-types");
  }
  for (const InputSpec& input : of.inputs) {
    add(input.requires_grad, "input-gradient");
    add(input.kind == "undefined", "undefined");
  }
  return fmt::format("{}", fmt::join(features, " "));
}

/// The smallest case that still ends in the same finding.
Case shrunk(const Case& failing, const Verdict& verdict, double deadline_s) {
  return shrink(failing, [&](const Case& candidate) {
    bool is_same = false;
    run_isolated(
        1, deadline_s, [&](size_t) { return check(candidate); },
        [&](size_t, const Verdict& now) {
          is_same =
              now.is_finding() && signature_of(now) == signature_of(verdict);
          return true;
        });
    return is_same;
  });
}

/// As its file is called.
std::string name_of(const Case& of) {
  if (!is_program(of)) return fmt::format("{}_{}", of.kind, of.seed);
  const char* const backend = of.backend == "shm" ? "shm" : "tcp";
  return fmt::format("program_{}_{}", of.kind == "world" ? backend : of.kind,
                     of.seed);
}

/// Kinds of programs for --with.
const std::map<std::string, std::function<bool(const Case&)>>& program_kinds() {
  static const std::map<std::string, std::function<bool(const Case&)>> kinds{
      {"one-rank-differs", has_one_rank_that_differs},
      {"member-changes",
       [](const Case& of) { return has_event(of, "change_member"); }},
      {"no-broken-rule", [](const Case& of) { return !breaks_contract(of); }}};
  return kinds;
}

class Fuzzer {
 public:
  explicit Fuzzer(Options options) : options_(std::move(options)) {}

  int run() {
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                           begin)
          .count();
    };
    const size_t count = options_.seconds > 0 ? SIZE_MAX : options_.cases;
    run_isolated(
        count, options_.deadline_s, [&](size_t i) { return check(case_at(i)); },
        [&](size_t i, const Verdict& verdict) {
          report(case_at(i), verdict);
          print_progress(seconds(), count);
          return findings_ < options_.most_findings &&
                 (options_.seconds <= 0 || seconds() < options_.seconds);
        },
        options_.has_processes ? 1 : kTasksPerProcess);
    print_counts(seconds());
    return findings_ == 0 ? 0 : 1;
  }

  int replay() {
    std::ifstream file(options_.replay);
    std::stringstream text;
    text << file.rdbuf();
    const Case of = case_of_text(text.str());
    run_isolated(
        1, options_.deadline_s, [&](size_t) { return check(of); },
        [&](size_t, const Verdict& verdict) {
          report(of, verdict);
          return true;
        });
    print_counts(0);
    return findings_ == 0 ? 0 : 1;
  }

 private:
  Case case_of_seed(uint64_t seed) const {
    Case of = options_.has_programs ? generate_program(options_.kind, seed)
                                    : generate(options_.kind, seed);
    of.has_processes = options_.has_processes && of.ranks > 1;
    return of;
  }

  /// Returns case `i` of those that --with lets through.
  Case case_at(size_t i) {
    if (options_.with.empty()) return case_of_seed(options_.seed + i);
    const auto& is_wanted = program_kinds().at(options_.with);
    while (seeds_.size() <= i) {
      uint64_t seed = seeds_.empty() ? options_.seed : seeds_.back() + 1;
      while (!is_wanted(case_of_seed(seed))) ++seed;
      seeds_.push_back(seed);
    }
    return case_of_seed(seeds_[i]);
  }

  void report(const Case& of, const Verdict& verdict) {
    ++cases_;
    using Kind = Verdict::Kind;
    if (verdict.kind == Kind::kPlainFailed) ++plain_failures_[verdict.category];
    if (verdict.kind == Kind::kRefused) ++refusals_[verdict.category];
    if (!verdict.is_finding()) return;
    ++findings_;
    ++categories_[verdict.category];
    std::cout << fmt::format("[fuzz] FINDING {}: {}: {} [{}]\n", name_of(of),
                             verdict.category, verdict.detail, features_of(of))
              << std::flush;
    if (!options_.only.empty() &&
        (verdict.detail + features_of(of)).find(options_.only) ==
            std::string::npos) {
      return;
    }
    Case kept = of;
    if (options_.shrinks) {
      kept = shrunk(of, verdict, options_.deadline_s);
    }
    if (options_.shrinks || options_.shows) std::cout << to_text(kept);
    if (options_.found.empty()) return;
    std::filesystem::create_directories(options_.found);
    const std::string path =
        fmt::format("{}/{}.case", options_.found, name_of(of));
    std::ofstream(path) << to_text(kept);
    std::cout << "[fuzz] kept in " << path << std::endl;
  }

  /// Says each half a minute how far it is.
  void print_progress(double seconds, size_t count) {
    if (seconds < next_progress_s_) return;
    next_progress_s_ = seconds + 30;
    const double left = options_.seconds > 0
                            ? options_.seconds - seconds
                            : seconds / static_cast<double>(cases_) *
                                  static_cast<double>(count - cases_);
    std::cout << fmt::format(
                     "[fuzz] {}: {} cases in {:.0f} s, {} findings, {:.0f} s "
                     "left\n",
                     options_.kind, cases_, seconds, findings_, left)
              << std::flush;
  }

  void print_counts(double seconds) const {
    std::cout << fmt::format(
        "[fuzz] {}: seeds {} to {}: {} cases in {:.1f} s, {} findings\n",
        options_.kind, options_.seed,
        seeds_.empty() ? options_.seed + cases_ - 1 : seeds_.at(cases_ - 1),
        cases_, seconds, findings_);
    const auto print = [&](const char* what, const auto& counts) {
      size_t sum = 0;
      for (const auto& [name, count] : counts) sum += count;
      if (sum == 0) return;
      const auto share = [&](size_t count) {
        return 100.0 * static_cast<double>(count) / static_cast<double>(cases_);
      };
      std::cout << fmt::format("[fuzz] {:6} {:5.2f} % {}\n", sum, share(sum),
                               what);
      for (const auto& [name, count] : counts) {
        std::cout << fmt::format("[fuzz] {:6} {:5.2f} %   {}\n", count,
                                 share(count), name);
      }
    };
    print("findings", categories_);
    print("refused", refusals_);
    print("fail in plain LibTorch", plain_failures_);
  }

  Options options_;
  std::vector<uint64_t> seeds_;  // of the cases for --with
  double next_progress_s_ = 30;
  size_t cases_ = 0;
  size_t findings_ = 0;
  std::map<std::string, size_t> refusals_, plain_failures_, categories_;
};

int fuzz(int argc, char** argv) {
  Options options;
  CLI::App app("Trains at random with Lockstep and with plain LibTorch");
  app.add_option("--kind", options.kind, "What is tried")
      ->check(CLI::IsMember({"dp", "world", "ddp", "shm", "tcp"}))
      ->capture_default_str();
  app.add_flag("--programs", options.has_programs,
               "Training programs (dp, shm, tcp or ddp), not modules (dp, "
               "world or ddp)");
  std::vector<std::string> kinds;
  for (const auto& [name, is_wanted] : program_kinds()) kinds.push_back(name);
  app.add_option("--with", options.with,
                 "Only programs of this kind: one-rank-differs, "
                 "member-changes or no-broken-rule")
      ->check(CLI::IsMember(kinds));
  app.add_option("--seed", options.seed, "Of the first case")
      ->capture_default_str();
  app.add_option("--cases", options.cases, "How many")->capture_default_str();
  app.add_option("--seconds", options.seconds, "Instead: for how long");
  app.add_option("--deadline", options.deadline_s, "Seconds for a case")
      ->capture_default_str();
  app.add_option("--replay", options.replay, "A case, from a file");
  app.add_option("--keep", options.found, "A folder for cases that fail");
  app.add_option("--only", options.only,
                 "Shrink and keep only findings with this in their text");
  app.add_option("--most-findings", options.most_findings, "Then it ends")
      ->capture_default_str();
  app.add_flag("--processes", options.has_processes,
               "Ranks are processes, not threads");
  app.add_flag("--shrink", options.shrinks, "Make failing cases small");
  app.add_flag("--show", options.shows, "Print failing cases");
  CLI11_PARSE(app, argc, argv);
  if (!options.with.empty() &&
      (!options.has_programs ||
       (options.with == "one-rank-differs" && options.kind == "dp"))) {
    std::cerr << "--with needs --programs, and one-rank-differs needs ranks "
                 "(--kind shm, tcp or ddp)\n";
    return 2;
  }
  Fuzzer fuzzer(options);
  return options.replay.empty() ? fuzzer.run() : fuzzer.replay();
}

}  // namespace
}  // namespace lockstep::differential

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "fuzz") {
    return lockstep::differential::fuzz(argc - 1, argv + 1);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
