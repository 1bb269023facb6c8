#include "lockstep/tools/check/check_installation.h"

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
#include "lockstep/base/names.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/version.h"
#include "lockstep/device/links/link_advice.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::pair<Verdict, const char*> kVerdicts[] = {
    {Verdict::kOk, "ok"}, {Verdict::kWarn, "warn"}, {Verdict::kFail, "fail"}};

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

constexpr std::pair<LinkFinding::Kind, const char*> kFindingKinds[] = {
    {LinkFinding::Kind::kChanged, "changed"},
    {LinkFinding::Kind::kNotWritten, "not written"},
    {LinkFinding::Kind::kTimeout, "timeout"}};

ordered_json to_json(const std::vector<Link>& links,
                     const std::vector<LinkFinding>& findings) {
  ordered_json json = {{"checked", ordered_json::array()},
                       {"findings", ordered_json::array()}};
  for (const Link& link : links) json["checked"].push_back(link.name());
  for (const LinkFinding& finding : findings) {
    json["findings"].push_back(
        {{"link", finding.copy.link.name()},
         {"by_kernel", finding.copy.method == CopyMethod::kLoadsAndStores},
         {"bytes", finding.copy.bytes},
         {"kind", lockstep::name_of<LinkFinding::Kind>(
                      kFindingKinds, "kind of finding", finding.kind)},
         {"first_byte", finding.first_byte},
         {"wrong_bytes", finding.wrong_bytes}});
  }
  return json;
}

std::string how_to_fix(const Link& link) {
  std::string fix =
      "until it is repaired, runs copy around it through host memory "
      "(--bad-links stage, the default)";
  if (link.from.is_cpu() && link.to.is_cpu()) return fix;
  return fmt::format(
      "{} {}", fmt::join(advice_on_bad_links(gather_pci_facts()), " "), fix);
}

std::string end_of(const std::string& text) {
  return text.substr(text.size() - std::min(text.size(), kKeptOutput));
}

class Checker {
 public:
  Checker(std::string program, std::vector<Device> devices,
          const std::function<void(const Finding&)>& on_finding)
      : program_(std::move(program)),
        devices_(std::move(devices)),
        on_finding_(on_finding) {
    check_.details = {{"lockstep", kVersion},
                      {"can_train", true},
                      {"findings", ordered_json::array()},
                      {"commands", ordered_json::array()}};
  }

  InstallationCheck run(const CheckOptions& options) {
    for (Finding& finding : diagnose(gather_host_facts())) {
      if (finding.verdict == Verdict::kFail) {
        check_.details["can_train"] = false;
      }
      add(std::move(finding));
    }
    if (devices_.size() >= 2) check_all_links(options.links());
    if (options.full()) {
      if (devices_.size() >= 2) check_collectives();
      check_training();
    }
    return std::move(check_);
  }

 private:
  void add(Finding finding) {
    check_.details["findings"].push_back({{"topic", finding.topic},
                                          {"verdict", name_of(finding.verdict)},
                                          {"found", finding.found},
                                          {"fix", finding.fix}});
    on_finding_(finding);
    check_.findings.push_back(std::move(finding));
  }
  void add(const std::string& topic, bool is_ok, const std::string& found,
           const std::string& fix) {
    add({.topic = topic,
         .verdict = is_ok ? Verdict::kOk : Verdict::kFail,
         .found = found,
         .fix = is_ok ? "" : fix});
  }

  CommandResult run_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program_);
    const Command command{.arguments = std::move(arguments),
                          .environment = {},
                          .deadline_s = kDeadlineSeconds};
    const CommandResult result = run_command(command);
    check_.details["commands"].push_back(
        {{"command", fmt::format("{}", fmt::join(command.arguments, " "))},
         {"end", describe_end(result, command)},
         {"out", end_of(result.out)},
         {"err", end_of(result.err)}});
    return result;
  }

  void check_all_links(const LinkCheckOptions& options) {
    const auto links = links_between(devices_);
    const auto findings = check_links(links, options);
    check_.details["links"] = to_json(links, findings);
    for (const Link& link : links) {
      const auto bad = std::ranges::find_if(
          findings, [&](const LinkFinding& f) { return f.copy.link == link; });
      const bool is_ok = bad == findings.end();
      add("link", is_ok, is_ok ? link.name() : bad->text(),
          is_ok ? "" : how_to_fix(link));
    }
  }

  void check_collectives() {
    const CommandResult result =
        run_program({"bench", "allreduce", "--sizes", "4K:1M", "--nproc",
                     fmt::format("{}", devices_.size())});
    add("collectives", result.ok(),
        result.ok() ? "all-reduce of 4 KiB to 1 MiB over " +
                          counted(static_cast<int64_t>(devices_.size()), "rank")
                    : without_tags(last_line(result.err)),
        "see the end of its output with --json");
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
    add("training", problem.empty(),
        problem.empty()
            ? fmt::format("{}: the same parameters after 4 steps ({})",
                          fmt::join(strategies, ", "), first.substr(0, 16))
            : problem,
        "see the ends of the runs' output with --json");
  }

  std::string program_;
  std::vector<Device> devices_;
  const std::function<void(const Finding&)>& on_finding_;
  Workplace workplace_;
  InstallationCheck check_;
};

}  // namespace

std::string name_of(Verdict verdict) {
  return lockstep::name_of<Verdict>(kVerdicts, "verdict", verdict);
}

int64_t InstallationCheck::count(Verdict verdict) const {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

InstallationCheck check_installation(
    const std::string& program, const std::vector<Device>& devices,
    const CheckOptions& options,
    const std::function<void(const Finding&)>& on_finding) {
  return Checker(program, devices, on_finding).run(options);
}

}  // namespace lockstep::tools
