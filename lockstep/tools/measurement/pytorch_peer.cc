#include "lockstep/tools/measurement/pytorch_peer.h"

#include <filesystem>
#include <numeric>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

constexpr const char* kScript = "pytorch_step_time.py";
// File with one line: the Python whose LibTorch Lockstep was built with.
constexpr const char* kPythonFile = "torch_python";
// File in an environment that tools/setup/python_env.sh made for C++ only: it
// has torch's libraries, and Python can't import them.
constexpr const char* kLibTorchOnly = "libtorch_only";
constexpr const char* kDefaultPython = "python3";
// Importing torch from a cold disk takes long.
constexpr double kImportDeadlineSeconds = 120;

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// There are two places to search: test programs are in bin of a build folder,
// and the program itself is in libexec/lockstep.
fs::path find_script(const fs::path& program) {
  const fs::path above = program.parent_path().parent_path();
  for (const fs::path& prefix : {above, above.parent_path()}) {
    const fs::path script = prefix / "share" / "lockstep" / kScript;
    if (is_file(script)) return script;
  }
  return {};
}

std::string find_python(const fs::path& share) {
  if (const auto named = env("LOCKSTEP_PYTHON")) return *named;
  std::string built_with;
  try {
    built_with = first_line(read_file(share / kPythonFile, 4096));
  } catch (const IoError&) {
    return kDefaultPython;
  }
  return ::access(built_with.c_str(), X_OK) == 0 ? built_with : kDefaultPython;
}

// Returns the command that gives a user a Python with torch. It does not
// install packages into the system's Python, which Debian refuses.
std::string install_command(const std::string& python) {
  if (python == kDefaultPython) {
    return "run: python3 -m venv ~/torch && ~/torch/bin/pip install torch, and "
           "try again with LOCKSTEP_PYTHON=~/torch/bin/python";
  }
  const fs::path environment = fs::path(python).parent_path().parent_path();
  const fs::path clone = environment.parent_path();
  if (is_file(environment / kLibTorchOnly) && is_file(clone / "Makefile")) {
    return fmt::format(
        "run: make -C '{}' setup (it adds torch for Python, 3.5 GB on disk)",
        clone.string());
  }
  return fmt::format(
      "run: '{}' -m pip install torch (or name a Python that has torch in "
      "LOCKSTEP_PYTHON)",
      python);
}

// Returns why `python` can't import torch, or "" if it can.
std::string why_no_torch(const std::string& python,
                         const std::function<bool()>& stop) {
  const Command command{
      .arguments = {python, "-c", "import torch.distributed.run"},
      .environment = {},
      .deadline_s = kImportDeadlineSeconds,
      .stop = stop};
  try {
    const CommandResult result = run_command(command);
    if (result.ok()) return {};
    const std::string line = last_line(result.err);
    return fmt::format(
        "'{}' can't import torch; expected a Python that has torch, got '{}'; "
        "{}",
        python, line.empty() ? describe_end(result, command) : line,
        install_command(python));
  } catch (const IoError&) {
    return fmt::format(
        "there is no Python; expected one that has torch, got '{}', which "
        "can't be started; name another one in LOCKSTEP_PYTHON{}",
        python, python == kDefaultPython ? ", or install python3" : "");
  }
}

}  // namespace

PyTorchPeer find_pytorch(const std::function<bool()>& stop,
                         const std::string& program) {
  const fs::path script = find_script(program);
  PyTorchPeer peer{.python = find_python(script.parent_path()),
                   .script = script.string(),
                   .missing = ""};
  peer.missing =
      script.empty()
          ? fmt::format(
                "the script that times PyTorch is missing; expected "
                "share/lockstep/{} in the installation of {}; install Lockstep "
                "again",
                kScript, program)
          : why_no_torch(peer.python, stop);
  return peer;
}

Command pytorch_command(const PyTorchPeer& peer, const Work& work,
                        const std::string& strategy, int processes, int cores) {
  Command command;
  auto& arguments = command.arguments;
  arguments = {peer.python};
  const bool has_ranks = strategy != "single";
  if (has_ranks) {
    for (const char* part : {"-m", "torch.distributed.run", "--standalone"}) {
      arguments.emplace_back(part);
    }
    arguments.push_back(fmt::format("--nproc_per_node={}", processes));
  }
  const int sharing = has_ranks ? processes : 1;
  const auto add = [&](const std::string& option, auto value) {
    arguments.push_back(option);
    arguments.push_back(fmt::format("{}", value));
  };
  arguments.push_back(peer.script);
  add("--mode", strategy);
  add("--model", work.model);
  add("--batch", work.batch_size);
  add("--steps", work.steps);
  add("--warmup", work.warmup);
  add("--seed", work.seed);
  add("--threads", std::max(1, cores / sharing));
  arguments.emplace_back("--fused");
  if (work.precision == "bf16") arguments.emplace_back("--bf16");
  if (work.channels_last) arguments.emplace_back("--channels-last");
  // torchrun would set this anyway, but with a four-line warning.
  if (has_ranks) command.environment["OMP_NUM_THREADS"] = "1";
  return command;
}

Measurement pytorch_measurement(const std::string& output,
                                const std::string& strategy,
                                const Command& command) {
  const std::string line = last_line(output);
  try {
    const auto json = parse_json(line);
    Measurement result;
    auto& report = result.report;
    result.step_times_s = json.at("step_times_s").get<std::vector<double>>();
    report.command = command.arguments;
    report.strategy = strategy;
    report.model = json.at("model").get<std::string>();
    report.parameters = json.at("parameters").get<int64_t>();
    report.world_size = json.at("world_size").get<int64_t>();
    report.processes = report.world_size;
    report.shards = report.world_size;
    report.batch_size = json.at("batch").get<int64_t>();
    report.steps = static_cast<int64_t>(result.step_times_s.size());
    report.total_time_s = std::accumulate(result.step_times_s.begin(),
                                          result.step_times_s.end(), 0.0);
    for (int64_t rank = 0; rank < report.world_size; ++rank) {
      report.split.push_back(
          report.batch_size / report.world_size +
          (rank < report.batch_size % report.world_size ? 1 : 0));
    }
    return result;
  } catch (const nlohmann::json::exception&) {
    throw IoError({.code = ErrorCode::kProcessStart,
                   .what = "PyTorch's run printed no measurement",
                   .expected = "a line of JSON",
                   .got = line.empty() ? "nothing" : "'" + line + "'"});
  }
}

}  // namespace lockstep::tools
