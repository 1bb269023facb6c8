#include "lockstep/report/doctor/self_test.h"

#include <algorithm>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/version.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/report/doctor/diagnose.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr double kDeadlineSeconds = 300;
constexpr size_t kKeptOutput = 4000;
constexpr size_t kMaxReports = size_t{16} << 20;

// A temporary folder for the files of the runs. The destructor removes it.
class Workplace {
 public:
  Workplace() {
    std::string name = (fs::temp_directory_path() / "lockstep-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw IoError({.code = ErrorCode::kFileAccess,
                     .what = "can't make a folder " + name});
    }
    path_ = name;
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  std::string file(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

std::string end_of(const std::string& text) {
  return text.substr(text.size() - std::min(text.size(), kKeptOutput));
}

class Tester {
 public:
  Tester(std::string program, std::vector<Device> devices,
         const std::function<void(const SelfTestPart&)>& on_part)
      : program_(std::move(program)),
        devices_(std::move(devices)),
        on_part_(on_part) {
    test_.details = {{"lockstep", kVersion},
                     {"commands", ordered_json::array()}};
  }

  SelfTest run() {
    check_machine();
    if (devices_.size() >= 2) {
      check_devices_links();
      check_collectives();
    }
    check_training();
    for (const SelfTestPart& part : test_.parts) {
      test_.details["parts"].push_back(
          {{"name", part.name}, {"ok", part.is_ok}, {"found", part.found}});
    }
    return std::move(test_);
  }

 private:
  void note(const std::string& name, bool is_ok, const std::string& found) {
    test_.parts.push_back({name, is_ok, found});
    on_part_(test_.parts.back());
  }

  CommandResult run_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program_);
    const Command command{.arguments = std::move(arguments),
                          .environment = {},
                          .deadline_s = kDeadlineSeconds};
    const CommandResult result = run_command(command);
    test_.details["commands"].push_back(
        {{"command", fmt::format("{}", fmt::join(command.arguments, " "))},
         {"end", describe_end(result, command)},
         {"out", end_of(result.out)},
         {"err", end_of(result.err)}});
    return result;
  }

  void check_machine() {
    std::vector<std::string> problems;
    ordered_json facts = ordered_json::array();
    for (const Finding& finding : diagnose(gather_host_facts())) {
      facts.push_back({{"topic", finding.topic}, {"found", finding.found}});
      if (finding.verdict == Verdict::kFail) {
        problems.push_back(finding.topic + ": " + finding.found);
      }
    }
    test_.details["machine"] = std::move(facts);
    note("machine", problems.empty(),
         problems.empty() ? join_names(devices_)
                          : fmt::format("{}", fmt::join(problems, "; ")));
  }

  void check_devices_links() {
    const auto links = links_between(devices_);
    const auto findings = check_links_in_child(links, {});
    test_.details["links"] =
        parse_json<nlohmann::ordered_json>(format_findings(findings));
    note("links", findings.empty(),
         findings.empty()
             ? fmt::format("{}, copies of 1 KiB to 64 MiB",
                           counted(static_cast<int64_t>(links.size()), "link"))
             : describe_bad_links(findings));
  }

  void check_collectives() {
    const CommandResult result =
        run_program({"bench", "allreduce", "--sizes", "4K:1M", "--nproc",
                     fmt::format("{}", devices_.size())});
    note("collectives", result.ok(),
         result.ok()
             ? "all-reduce of 4 KiB to 1 MiB over " +
                   counted(static_cast<int64_t>(devices_.size()), "rank")
             : without_tags(last_line(result.err)));
  }

  std::vector<std::string> training(const std::string& strategy,
                                    const std::string& report) const {
    std::vector<std::string> names;
    for (const Device& device : devices_) names.push_back(device.name());
    // A single device is the whole host rather than one slice of it.
    if (strategy == "single") {
      names = {devices_.front().is_cpu() ? "cpu" : names.front()};
    }
    return {"train",
            "--model",
            "cnn",
            "--strategy",
            strategy,
            "--devices",
            fmt::format("{}", fmt::join(names, ",")),
            "--shards",
            fmt::format("{}", devices_.size()),
            "--oversubscribe",  // allowed by the caller if needed
            "--intra-op-threads",
            "1",
            "--batch-size",
            fmt::format("{}", 8 * devices_.size()),
            "--max-steps",
            "4",
            "--no-eval",
            "--quiet",
            "--report",
            report};
  }

  // Returns the digest of a run, or "" with the reason in `problem`.
  std::string digest_of(const std::string& strategy, std::string& problem) {
    const std::string report = workplace_.file(strategy + ".json");
    const CommandResult result = run_program(training(strategy, report));
    if (result.ok()) {
      try {
        return parse_json<nlohmann::ordered_json>(
                   read_file(report, kMaxReports))
            .at("parameter_sha256");
      } catch (const std::exception& error) {
        problem = fmt::format("{}: {}", strategy, lockstep::text_of(error));
        return "";
      }
    }
    problem =
        fmt::format("{}: {}", strategy, without_tags(last_line(result.err)));
    return "";
  }

  void check_training() {
    std::vector<std::string> strategies = {"single"};
    if (devices_.size() >= 2) {
      strategies.insert(strategies.end(), {"dp", "ddp"});
    }
    std::string first, problem;
    for (const std::string& strategy : strategies) {
      const std::string digest = digest_of(strategy, problem);
      if (!problem.empty()) break;
      if (first.empty()) first = digest;
      if (digest != first) {
        problem = fmt::format("{} has the parameters {}, and single {}",
                              strategy, digest, first);
        break;
      }
    }
    note("training", problem.empty(),
         problem.empty()
             ? fmt::format("{}: the same parameters after 4 steps ({})",
                           fmt::join(strategies, ", "), first.substr(0, 16))
             : problem);
  }

  std::string program_;
  std::vector<Device> devices_;
  const std::function<void(const SelfTestPart&)>& on_part_;
  Workplace workplace_;
  SelfTest test_;
};

}  // namespace

bool SelfTest::is_ok() const {
  return std::ranges::all_of(parts, &SelfTestPart::is_ok);
}

SelfTest run_self_test(
    const std::string& program, const std::vector<Device>& devices,
    const std::function<void(const SelfTestPart&)>& on_part) {
  return Tester(program, devices, on_part).run();
}

}  // namespace lockstep::report
