#include "tests/differential/rank_process.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

#include <torch/csrc/jit/serialization/pickle.h>

#include "lockstep/base/env.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/rank_tasks.h"
#include "tests/differential/data_parallel_strategy.h"
#include "tests/differential/ddp_strategy.h"
#include "tests/differential/history.h"

namespace lockstep::differential {

using c10::IValue;

namespace {

constexpr auto kFolderVariable = "LOCKSTEP_DIFFERENTIAL_FOLDER";
constexpr auto kTimeout = std::chrono::seconds(20);

std::string trace_path(const std::string& folder, int rank) {
  return folder + "/trace_" + std::to_string(rank);
}

void write(const Trace& trace, const std::string& path) {
  std::vector<IValue> entries;
  for (const Trace::Entry& entry : trace.entries) {
    entries.push_back(c10::ivalue::Tuple::create(
        {IValue(entry.label),
         entry.value.defined() ? IValue(entry.value) : IValue(),
         IValue(entry.has_fixed_bits)}));
  }
  const auto bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(
      {IValue(trace.error), IValue(static_cast<int64_t>(trace.events)),
       c10::ivalue::Tuple::create(std::move(entries))}));
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

Trace read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const IValue value = torch::jit::pickle_load(bytes);
  const auto& parts = value.toTupleRef().elements();
  Trace trace;
  trace.error = parts[0].toStringRef();
  trace.events = static_cast<size_t>(parts[1].toInt());
  for (const IValue& entry : parts[2].toTupleRef().elements()) {
    const auto& fields = entry.toTupleRef().elements();
    trace.entries.push_back(
        {fields[0].toStringRef(),
         fields[1].isNone() ? torch::Tensor() : fields[1].toTensor(),
         fields[2].toBool()});
  }
  return trace;
}

const RankTasks kTask("differential", [](const ProcessGroup& world) {
  torch::set_num_threads(1);
  const std::string folder = env(kFolderVariable).value();
  std::ifstream file(folder + "/case");
  std::stringstream text;
  text << file.rdbuf();
  const Trace trace = play_on_rank(case_of_text(text.str()), world);
  write(trace, trace_path(folder, world.rank()));
  // Ends the other ranks' waits.
  if (!trace.error.empty()) throw std::runtime_error(trace.error);
});

}  // namespace

Trace play_on_rank(const Case& of, const ProcessGroup& world) {
  const auto module =
      std::make_shared<InterpretedModule>(std::make_shared<const Case>(of));
  return play(of, [&]() -> std::unique_ptr<Strategy> {
    if (of.kind == "ddp") return std::make_unique<DdpStrategy>(module, world);
    return std::make_unique<DataParallelStrategy>(module, of.devices, world);
  });
}

std::vector<RankRun> run_in_processes(const Case& of) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/case") << to_text(of);
  setenv(kFolderVariable, folder.path().c_str(), 1);
  ProcessGroupOptions options;
  options.backend(of.backend);
  options.timeout(kTimeout);
  const auto ends =
      run_processes("differential", static_cast<int>(of.ranks), options);
  std::vector<RankRun> runs;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const std::string path = trace_path(folder.path(), static_cast<int>(rank));
    RankRun run{.name = "rank " + std::to_string(rank), .trace = {}};
    if (std::filesystem::exists(path)) {
      run.trace = read(path);
    } else {
      run.trace.error = "ended without a result, " + ends[rank];
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace lockstep::differential
