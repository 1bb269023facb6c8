#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/embed/ranks.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/tools/collectives/collective_bench.h"
#include "lockstep/tools/commands/commands.h"
#include "lockstep/train/record/progress.h"
#include "lockstep/train/run_report.h"

namespace lockstep::cli {
namespace {

using tools::CollectiveBenchOptions;
using tools::CollectiveReport;

struct BenchFlags {
  std::string collective;
  std::string sizes = "4K:256M";
  int64_t factor = 4;
  size_t nproc = 2;
  std::vector<std::string> backends{"shm", "tcp"};
  std::string type = "float32";
  std::string resident = "on";
  std::string check = "on";
  std::string json;
  CollectiveBenchOptions options;  ///< numbers are bound to it directly
};

CollectiveBenchOptions to_options(const BenchFlags& flags) {
  const auto has = [&](const char* name) {
    return std::ranges::count(flags.backends, name) > 0;
  };
  CollectiveBenchOptions options = flags.options;
  options.collective = tools::parse_collective(flags.collective);
  options.sizes = parse_sizes(flags.sizes, flags.factor);
  options.type = c10::getStringToDtypeMap().at(flags.type);
  options.with_shm = has("shm");
  options.with_tcp = has("tcp") || has("gloo");
  options.with_resident = flags.resident == "on";
  options.checks_data = flags.check == "on";
  return options;
}

// Returns the width of the terminal that the launcher of this rank writes to.
int columns_of_output() {
  const int known = training::terminal_columns(stdout);
  return known > 0 ? known : terminal_width(STDOUT_FILENO);
}

// Runs the benchmark. Rank 0 prints each size as soon as it is measured.
CollectiveReport measure(const CollectiveBenchOptions& options, bool prints) {
  if (prints) {
    fmt::print("{}",
               header_text(options.collective, read_environment().world_size,
                           columns_of_output()));
  }
  return tools::run_collective_bench(
      options, [&](const CollectiveReport& report) {
        if (prints) {
          fmt::print("{}",
                     to_text(report, report.sizes.back(), columns_of_output()));
        }
        std::fflush(stdout);
      });
}

void run(const BenchFlags& flags) {
  const auto options = to_options(flags);
  if (!flags.json.empty()) const AtomicFile writable(flags.json);
  if (!is_rank()) start_ranks(flags.nproc);
  const bool prints = read_environment().rank == 0;
  const CollectiveReport result = measure(options, prints);
  if (prints) {
    fmt::print("{}", summary_text(result, columns_of_output()));
    std::fflush(stdout);
    if (!flags.json.empty()) training::write_json(flags.json, to_json(result));
  }
  if (result.wrong() == 0) return;
  throw Error("bench", {.code = ErrorCode::kCollectiveFailed,
                        .what = "a collective gave wrong data",
                        .expected = "no wrong elements",
                        .got = std::to_string(result.wrong())});
}

std::vector<Option> bench_options(BenchFlags& flags) {
  return {
      {.name = "collective",
       .value = &flags.collective,
       .help = "allreduce, allgather, reduce-scatter, broadcast or alltoall",
       .words = tools::collective_names(),
       .is_required = true},
      {.name = "--sizes",
       .value = &flags.sizes,
       .help = "bytes per message, FIRST:LAST, with K, M or G (--sizes 1M:1G)",
       .type = "FIRST:LAST"},
      {.name = "--factor",
       .value = &flags.factor,
       .help = "ratio of each size to the one before (--factor 2)",
       .range = between(2, 1'000'000)},
      {.name = "--nproc",
       .value = &flags.nproc,
       .help = "ranks to start, unless a launcher started them (--nproc 4)",
       .range = between(2, 40)},
      {.name = "--backend",
       .value = &flags.backends,
       .help = "backends to time: shm, tcp (--backend shm)",
       .default_text = "shm,tcp",
       .words = {"shm", "tcp"},
       .former_words = {"gloo"}},
      {.name = "--pytorch",
       .value = &flags.options.with_pytorch,
       .help = "also time torch.distributed over Gloo, in Python processes"},
      {.name = "--dtype",
       .value = &flags.type,
       .help = "type of the elements (--dtype bfloat16)",
       .words = {"float32", "float64", "float16", "bfloat16", "int32", "int64",
                 "uint8"}},
      {.name = "--iters",
       .value = &flags.options.iterations,
       .help = "timed rounds per size (--iters 100)",
       .default_text = "20; 5 above 32M",
       .range = between(1, 1'000'000)},
      {.name = "--warmup",
       .value = &flags.options.warmup,
       .help = "untimed rounds before them (--warmup 0)",
       .range = between(0, 1'000'000)},
      {.name = "--resident",
       .value = &flags.resident,
       .help = "allreduce, shm: also time buffers in shared memory, which "
               "needs no copies (--resident off)",
       .type = "WHEN",
       .words = {"on", "off"}},
      {.name = "--check",
       .value = &flags.check,
       .help = "check every element of the result in every round (--check off)",
       .type = "WHEN",
       .words = {"on", "off"}},
      {.name = "--json",
       .value = &flags.json,
       .help = "also write the figures here (--json bench.json)",
       .type = "PATH",
       .default_text = "none"},
  };
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command =
      add_command(app, "bench", "Time and check collectives, as nccl-tests do");
  auto flags = std::make_shared<BenchFlags>();
  add_options(*command, bench_options(*flags));
  command->footer(
      "Every round uses each backend once. Sizes, algbw and busbw are counted "
      "as nccl-tests count them. --pytorch needs a Python with torch "
      "(LOCKSTEP_PYTHON); the last column is then the speed-up over "
      "torch.distributed.\n"
      "Exit codes: 0 all data is correct, 1 some is wrong.\n\n"
      "Example:\n"
      "  lockstep bench allreduce --sizes 4K:64M --nproc 2 --json bench.json");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
