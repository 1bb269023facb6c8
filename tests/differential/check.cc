#include "tests/differential/check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "tests/differential/data_parallel_strategy.h"
#include "tests/differential/history.h"
#include "tests/differential/plain.h"
#include "tests/differential/rank_process.h"
#include "tests/differential/refusals.h"

namespace lockstep::differential {

namespace {

using Kind = Verdict::Kind;
constexpr auto kRankTimeout = std::chrono::seconds(20);

/// Returns how much a result may differ from plain LibTorch.
double tolerance_of(const Case& of) {
  double tolerance = 1e-10;
  const auto allow = [&](double more) {
    tolerance = std::max(tolerance, more);
  };
  if (of.dtype == "float") allow(2e-4);
  // AdamW divides what is rounded by what is rounded.
  if (of.dtype == "half") allow(of.optimizer == "adamw" ? 1e-1 : 3e-2);
  if (of.dtype == "bfloat16") allow(2e-1);
  if (has_event(of, "cast")) allow(2e-4);
  for (const ParameterSpec& parameter : of.parameters) {
    if (!parameter.dtype.empty()) allow(2e-4);
  }
  return tolerance;
}

/// Returns the distance of 1 to the next number of `type`.
double last_place_of(torch::ScalarType type) {
  if (type == torch::kHalf) return std::exp2(-10);
  if (type == torch::kBFloat16) return std::exp2(-7);
  return type == torch::kDouble ? std::exp2(-52) : std::exp2(-23);
}

/// A run, by its name.
struct Run {
  std::string name;
  Trace trace;
};

class Checker {
 public:
  explicit Checker(const Case& of)
      : case_(of), definition_(std::make_shared<const Case>(of)) {}

  Verdict check() {
    const LogCapture log;
    // Before anything here starts a thread.
    if (case_.has_processes) ranks_in_processes_ = run_in_processes(case_);
    plain_ =
        play(case_, [this] { return std::make_unique<Plain>(make_module()); });
    // Once a step is as good as twice, if all do the same.
    once_ = plain_;
    if (has_duplicates()) {
      once_ = play(
          case_, [this] { return std::make_unique<Plain>(make_module()); },
          false);
    }
    if (case_.kind == "dp") {
      add_data_parallel(1);
      if (case_.devices > 1) add_data_parallel(case_.devices);
    } else {
      if (has_bits_of_one_device()) add_data_parallel(1);
      add_ranks();
    }
    if (promises_bits_of_data_parallel()) add_twin_of_ddp();
    is_reported_ = log.text().find("could not check") != std::string::npos;
    return judge();
  }

 private:
  std::shared_ptr<InterpretedModule> make_module() const {
    return std::make_shared<InterpretedModule>(definition_);
  }

  /// Returns true if the ranks together compute what one computes. The loss in
  /// a loop of the user's own is that of one rank.
  bool is_one_batch() const {
    return !has_event(case_, "backward") && !has_event(case_, "no_sync");
  }

  /// Returns whether the ranks promise the bits of DataParallel on one device.
  /// DistributedDataParallel does so for train_step().
  bool has_bits_of_one_device() const {
    return is_one_batch() && (case_.kind == "world" || is_program(case_));
  }

  /// Returns whether DistributedDataParallel promises the bits of DataParallel.
  /// The shards' weights are powers of two and therefore exact, except for
  /// numbers that are too small to be halved, which soon occur in half
  /// precision.
  bool promises_bits_of_data_parallel() const {
    if (case_.kind != "ddp" || case_.ranks != 2 || case_.loss == "force" ||
        case_.has_l2 || case_.dtype == "half" ||
        has_operation(case_, "dropout")) {
      return false;
    }
    return std::all_of(case_.history.begin(), case_.history.end(),
                       [](const Event& event) {
                         return event.what == "step" && event.numbers[0] > 0 &&
                                event.numbers[0] % 2 == 0;
                       });
  }

  /// The same training by DataParallel, as far as that can be compared.
  void add_twin_of_ddp() {
    Case twin = case_;
    twin.kind = "dp";
    twin.mode = "gradients";
    twin.ranks = 1;
    const auto definition = std::make_shared<const Case>(twin);
    Trace trace = play(twin, [&] {
      return std::make_unique<DataParallelStrategy>(
          std::make_shared<InterpretedModule>(definition), 1);
    });
    std::erase_if(trace.entries, [](const Trace::Entry& entry) {
      return entry.label.find("loss") != std::string::npos ||
             entry.label.find("gradient of input") != std::string::npos;
    });
    twin_ = Run{"DataParallel on 1", std::move(trace)};
  }

  bool has_duplicates() const {
    return case_.registers_twice ||
           std::any_of(
               case_.parameters.begin(), case_.parameters.end(),
               [](const ParameterSpec& spec) { return spec.tied_to >= 0; });
  }

  void add_data_parallel(int64_t devices) {
    runs_.push_back(
        {fmt::format("DataParallel on {}", devices), play(case_, [&] {
           return std::make_unique<DataParallelStrategy>(make_module(),
                                                         devices);
         })});
  }

  void add_ranks() {
    if (case_.has_processes) {
      for (RankRun& run : ranks_in_processes_) {
        runs_.push_back({std::move(run.name), std::move(run.trace)});
      }
      return;
    }
    const auto ranks = static_cast<size_t>(case_.ranks);
    std::vector<Trace> traces(ranks);
    ProcessGroupOptions options;
    options.backend(case_.backend);
    options.timeout(kRankTimeout);
    spawn(
        static_cast<int>(case_.ranks),
        [&](const ProcessGroup& world) {
          Trace& trace = traces[static_cast<size_t>(world.rank())];
          trace = play_on_rank(case_, world);
          if (!trace.error.empty()) world.abort(trace.error);
        },
        options);
    for (size_t rank = 0; rank < ranks; ++rank) {
      runs_.push_back({fmt::format("rank {}", rank), std::move(traces[rank])});
    }
  }

  /// The run whose exception is the cause of the others': ranks complain of
  /// each other.
  const Run* failed_run() const {
    const Run* found = nullptr;
    for (const Run& run : runs_) {
      if (run.trace.error.empty()) continue;
      if (!is_complaint(run.trace.error)) return &run;
      if (!found) found = &run;
    }
    return found;
  }
  /// Returns whether an error is about another rank.
  static bool is_complaint(const std::string& error) {
    return error.rfind("[comm]", 0) == 0 ||
           error.find("onnection") != std::string::npos;
  }

  Verdict judge() const {
    Verdict verdict = compare();
    if (verdict.is_finding() && has_one_rank_that_differs(case_)) {
      return judge_one_rank(verdict);
    }
    if (verdict.is_finding() && verdict.category != "error" && is_reported_ &&
        has_bad_module_or_loss(case_)) {
      return {Kind::kRefused, kWarned, verdict.detail};
    }
    return verdict;
  }

  /// Returns true if a run came to the statement that makes a rank differ.
  static bool has_come_to_difference(const Trace& trace) {
    return std::any_of(trace.entries.begin(), trace.entries.end(),
                       [](const Trace::Entry& entry) {
                         return entry.label.ends_with(kOneRankDiffers);
                       });
  }

  /// Judges a program in which one rank differs, for which compare() has found
  /// `verdict`. The results before the error are not those of plain LibTorch.
  Verdict judge_one_rank(const Verdict& verdict) const {
    const Run* const failed = failed_run();
    if (failed && !has_come_to_difference(failed->trace)) return verdict;
    // The others complain when a rank leaves that has trained to its end.
    const bool is_refused =
        failed && (!is_complaint(failed->trace.error) ||
                   std::none_of(runs_.begin(), runs_.end(), [](const Run& run) {
                     return run.name.starts_with("rank") &&
                            run.trace.error.empty();
                   }));
    if (is_refused) return judge_failure(*failed);
    if (failed && is_only_ahead()) {
      return {Kind::kRefused, "one rank differs: it ended before the others",
              failed->trace.error};
    }
    if (failed) {
      return finding("silence", verdict.detail + "; at the end " +
                                    failed->name + ": " + failed->trace.error);
    }
    // Before the first step, rank 0 gives the others its parameters.
    return have_all_changed() ? Verdict() : finding("silence", verdict.detail);
  }

  /// Returns whether the rank that differs left out an exchange, and the update
  /// after that changed nothing, because its own gradients are zero. All ranks
  /// then go on with the same parameters, as if that rank had other data, until
  /// it ends before them.
  bool is_only_ahead() const {
    const auto event = std::find_if(case_.history.begin(), case_.history.end(),
                                    is_of_one_rank);
    if (event->what != "one_rank_no_sync") return false;
    const std::string name = fmt::format("rank {}", event->numbers[0]);
    const auto ahead =
        std::find_if(runs_.begin(), runs_.end(),
                     [&](const Run& run) { return run.name == name; });
    if (ahead == runs_.end()) return false;
    std::map<std::string, torch::Tensor> before;
    bool is_after = false;
    std::string event_after;
    for (const Trace::Entry& entry : ahead->trace.entries) {
      is_after = is_after || entry.label.ends_with(kOneRankDiffers);
      const size_t colon = entry.label.find(": parameter ");
      if (colon == std::string::npos) continue;
      const std::string event_of = entry.label.substr(0, colon);
      torch::Tensor& last = before[entry.label.substr(colon)];
      if (!is_after) {
        last = entry.value;
        continue;
      }
      if (event_after.empty()) event_after = event_of;
      if (event_of != event_after) return true;
      if (!last.defined() || !torch::equal(last, entry.value)) return false;
    }
    return !event_after.empty();
  }

  /// Returns the rank that differs.
  int64_t rank_that_differs() const {
    const auto event = std::find_if(case_.history.begin(), case_.history.end(),
                                    is_of_one_rank);
    return event->numbers[0];
  }

  /// Returns whether the ranks have trained as if each of them had made the
  /// change that rank 0 made.
  bool have_all_changed() const {
    if (rank_that_differs() != 0) return false;
    Case changed = case_;
    size_t at = 0;
    while (!is_of_one_rank(changed.history[at])) ++at;
    Event& event = changed.history[at];
    event.what = event.what.substr(kOneRank.size());
    if (event.what == "skips_update" || event.what == "no_sync") return false;
    event.numbers.erase(event.numbers.begin());
    const Trace expected = play_plain(changed);
    return std::all_of(runs_.begin(), runs_.end(), [&](const Run& run) {
      return !run.name.starts_with("rank") ||
             !difference(since_next_step(run.trace, at),
                         since_next_step(expected, at), tolerance_of(case_));
    });
  }

  /// Returns the entries since the first step after event `at`.
  Trace since_next_step(const Trace& trace, size_t at) const {
    const auto is_step = [](const Event& event) {
      return event.what == "train_step" || event.what == "backward";
    };
    do {
      ++at;
    } while (at < case_.history.size() && !is_step(case_.history[at]));
    Trace rest = trace;
    const std::string label = fmt::format("event {} ", at);
    rest.entries.erase(rest.entries.begin(),
                       std::find_if(rest.entries.begin(), rest.entries.end(),
                                    [&](const Trace::Entry& entry) {
                                      return entry.label.starts_with(label);
                                    }));
    return rest;
  }

  Verdict compare() const {
    if (!has_operation(case_, "dropout")) {
      for (const Run& run : runs_) {
        const double tolerance = tolerance_of(case_);
        const auto what = difference(run.trace, plain_, tolerance);
        if (what && difference(run.trace, once_, tolerance) &&
            !is_ill_conditioned() && !is_rounding_of_shards(run.trace)) {
          return finding("difference", run.name + ", " + *what);
        }
      }
    }
    const auto same_bits = difference_of_runs();
    if (same_bits) return finding("bits", *same_bits);
    if (const Run* failed = failed_run()) return judge_failure(*failed);
    if (!plain_.error.empty()) {
      return {Kind::kPlainFailed, first_line(plain_.error), ""};
    }
    return {};
  }

  /// Returns true if `trace` is within twice the tolerance of plain LibTorch,
  /// and DataParallel is within the tolerance for double when computed in
  /// double. The difference is then only rounding: gradients of shards that are
  /// rounded one by one, and then cancel, are off by more than one that is
  /// rounded once. Adam makes a large step of the rest.
  bool is_rounding_of_shards(const Trace& trace) const {
    if (case_.dtype == "double" || case_.dtype == "complex") return false;
    if (difference(trace, plain_, 2 * tolerance_of(case_))) return false;
    Case wide = case_;
    wide.dtype = "double";
    const auto definition = std::make_shared<const Case>(wide);
    const Trace in_double = play(wide, [&] {
      return std::make_unique<DataParallelStrategy>(
          std::make_shared<InterpretedModule>(definition), 1);
    });
    return !difference(in_double, play_plain(wide), tolerance_of(wide));
  }

  /// Returns whether so much is lost by rounding to 16 or 32 bits that plain
  /// LibTorch's own result is not within the tolerance of what it is in double,
  /// or of what it is from weights that are rounded in another way. AdamW makes
  /// a whole step of a gradient that is only rounding.
  bool is_ill_conditioned() const {
    if (case_.dtype == "double" || case_.dtype == "complex") return false;
    Case wide = case_;
    wide.dtype = "double";
    const auto is_far = [&](const Trace& trace) {
      return difference(plain_, trace, tolerance_of(case_)).has_value();
    };
    if (is_far(play_plain(wide))) return true;
    for (const int roundings : {1, 2, 3}) {
      if (is_far(play_plain(case_, roundings))) return true;
      if (is_far(play_plain(case_, roundings, Signs::kAlternating))) {
        return true;
      }
    }
    return false;
  }

  /// Returns the error of plain LibTorch if no sample is marked to fail. On one
  /// device, a marked sample ends a step first. On a shard without the marked
  /// sample, an error of the module itself ends it.
  std::string error_without_marks() const {
    Case unmarked = case_;
    for (Event& event : unmarked.history) {
      if (event.what == "fail_loss" || event.what == "fail_backward") {
        event = {"step", {event.numbers[0]}};
      }
    }
    return play_plain(unmarked).error;
  }

  /// Direction in which the weights are off: in a sum that cancels, weights
  /// that are all off alike still cancel.
  enum class Signs { kSame, kAlternating };
  /// Plays `of` from weights that are `roundings` units of the last place off.
  static Trace play_plain(const Case& of, int roundings = 0,
                          Signs signs = Signs::kSame) {
    const auto definition = std::make_shared<const Case>(of);
    return play(of, [&] {
      auto module = std::make_shared<InterpretedModule>(definition);
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : module->unique_parameters()) {
        const double off = roundings * last_place_of(parameter.scalar_type());
        const torch::Tensor is_odd =
            torch::arange(parameter.numel()).reshape(parameter.sizes()) % 2 ==
            1;
        parameter.copy_(signs == Signs::kAlternating
                            ? torch::where(is_odd, parameter * (1 - off),
                                           parameter * (1 + off))
                            : parameter * (1 + off));
      }
      return std::make_unique<Plain>(std::move(module));
    });
  }

  std::optional<std::string> difference_of_runs() const {
    const Run& first = twin_ ? *twin_ : runs_.front();
    for (size_t i = twin_ ? 0 : 1; i < runs_.size(); ++i) {
      const auto what = difference(runs_[i].trace, first.trace, std::nullopt);
      if (what) {
        return fmt::format("{} against {}, {}", runs_[i].name, first.name,
                           *what);
      }
    }
    return std::nullopt;
  }

  Verdict judge_failure(const Run& failed) const {
    const std::string& error = failed.trace.error;
    if (!plain_.error.empty() && failed.trace.events >= plain_.events) {
      return {Kind::kPlainFailed, first_line(plain_.error), ""};
    }
    if (const auto unmarked = error_without_marks(); !unmarked.empty()) {
      return {Kind::kPlainFailed, first_line(unmarked), ""};
    }
    if (const auto cause = cause_of_refusal(case_, error, plain_)) {
      return {Kind::kRefused, *cause, error};
    }
    return finding("error", failed.name + ": " + error);
  }

  static Verdict finding(const std::string& category,
                         const std::string& detail) {
    return {Kind::kFinding, category, detail};
  }
  static std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n')).substr(0, 80);
  }

  const Case& case_;
  std::shared_ptr<const Case> definition_;
  Trace plain_;
  Trace once_;
  std::vector<Run> runs_;
  std::vector<RankRun> ranks_in_processes_;
  std::optional<Run> twin_;
  bool is_reported_ = false;  // a check of the first step can't be made
};

}  // namespace

Verdict check(const Case& of) {
  torch::set_num_threads(1);
  torch::manual_seed(of.seed);
  return Checker(of).check();
}

}  // namespace lockstep::differential
