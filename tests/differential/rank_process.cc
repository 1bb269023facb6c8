#include "tests/differential/rank_process.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/jit/serialization/pickle.h>

#include "tests/base/temporary_folder.h"
#include "tests/differential/data_parallel_strategy.h"
#include "tests/differential/ddp_strategy.h"
#include "tests/differential/history.h"

namespace lockstep::differential {

using c10::IValue;

namespace {

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

/// Sets what torchrun would set for a rank whose store is at `port`.
void set_environment(const Case& of, int rank, int port) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  for (const char* const name : {"RANK", "LOCAL_RANK"}) {
    set(name, std::to_string(rank));
  }
  for (const char* const name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    set(name, std::to_string(of.ranks));
  }
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  set("TORCHELASTIC_RUN_ID", "test");
}

/// Trains as a rank, and writes the trace to `path`.
void run_rank(const Case& of, const std::string& path) {
  Trace trace;
  try {
    ProcessGroupOptions options;
    options.backend(of.backend);
    options.timeout(kTimeout);
    const ProcessGroup world = init(options);
    trace = play_on_rank(of, world);
    // Ends the other ranks' waits.
    if (!trace.error.empty()) world.abort(trace.error);
  } catch (const std::exception& error) {
    if (trace.error.empty()) trace.error = error.what();
  }
  write(trace, path);
}

/// A forked rank, which waits for the port of its store.
class RankProcess {
 public:
  RankProcess(const Case& of, int rank, const std::string& path) {
    std::array<int, 2> files{};
    if (::pipe(files.data()) != 0) throw std::runtime_error("no pipe");
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("no process");
    if (pid_ == 0) {
      ::close(files[1]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      int port = 0;
      if (::getppid() != parent ||
          ::read(files[0], &port, sizeof(port)) != sizeof(port)) {
        ::_exit(1);
      }
      set_environment(of, rank, port);
      run_rank(of, path);
      ::_exit(0);
    }
    ::close(files[0]);
    port_file_ = files[1];
  }
  ~RankProcess() {
    ::close(port_file_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void start(int port) const {
    if (::write(port_file_, &port, sizeof(port)) != sizeof(port)) {
      throw std::runtime_error("a rank ended before its start");
    }
  }
  /// Waits for the end, and returns it in words.
  std::string end() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status)
               ? "signal " + std::to_string(WTERMSIG(status))
               : "exit code " + std::to_string(WEXITSTATUS(status));
  }

 private:
  pid_t pid_ = -1;
  int port_file_ = -1;
};

}  // namespace

Trace play_on_rank(const Case& of, const ProcessGroup& world) {
  const auto module =
      std::make_shared<InterpretedModule>(std::make_shared<const Case>(of));
  return play(of, [&]() -> std::unique_ptr<Strategy> {
    if (uses_ddp(of)) return std::make_unique<DdpStrategy>(module, world);
    return std::make_unique<RankStrategy>(module, of.devices, world);
  });
}

std::vector<RankRun> run_in_processes(const Case& of) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < of.ranks; ++rank) {
    processes.push_back(std::make_unique<RankProcess>(
        of, rank, trace_path(folder.path(), rank)));
  }
  // The store has a thread, so it is made after the forks.
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (const auto& process : processes) process->start(store->getPort());
  std::vector<RankRun> runs;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    const std::string end = processes[rank]->end();
    const std::string path = trace_path(folder.path(), static_cast<int>(rank));
    RankRun run{.name = "rank " + std::to_string(rank), .trace = {}};
    if (std::filesystem::exists(path)) {
      run.trace = read(path);
    } else {
      run.trace.error = "ended without a result, " + end;
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace lockstep::differential
