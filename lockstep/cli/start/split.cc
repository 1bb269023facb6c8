#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/table.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/print.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

struct SplitFlags {
  int64_t batch_size = 64;
  std::vector<int64_t> devices{2, 3, 5};
  bool as_json = false;
};

struct Row {
  int64_t devices;
  std::vector<int64_t> split;  // one per device that gets samples

  int64_t idle() const { return devices - static_cast<int64_t>(split.size()); }
};

void print_json(const SplitFlags& flags, const std::vector<Row>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    list.push_back({{"devices", row.devices},
                    {"batch_size", flags.batch_size},
                    {"split", row.split},
                    {"idle_devices", row.idle()}});
  }
  fmt::print("{}\n", list.dump(2));
}

// Explains why trailing devices are idle, for each row that has idle devices.
void explain_idle(const SplitFlags& flags, const std::vector<Row>& rows) {
  for (const auto& row : rows) {
    if (row.idle() == 0) continue;
    const auto working = static_cast<int64_t>(row.split.size());
    print_paragraph(fmt::format(
        "{0} over {1}: chunks are ceil({0} / {1}) = {2}, so {3} {4} all "
        "samples and device{5} {6} idle.",
        flags.batch_size, row.devices, row.split.front(),
        counted(working, "chunk"), working == 1 ? "takes" : "take",
        row.idle() == 1 ? fmt::format(" {}", row.devices - 1)
                        : fmt::format("s {}-{}", working, row.devices - 1),
        row.idle() == 1 ? "is" : "are"));
  }
}

void print_table(const SplitFlags& flags, const std::vector<Row>& rows) {
  Table table({"#GPUs", "Batch size", "Split per device"});
  table.align({Align::kRight, Align::kRight, Align::kLeft});
  for (const auto& row : rows) {
    std::string split = fmt::format("{}", fmt::join(row.split, "/"));
    if (row.idle() > 0) split += fmt::format(" ({} idle)", row.idle());
    table.add_row(
        {std::to_string(row.devices), std::to_string(flags.batch_size), split});
  }
  print_in_terminal(table);
  print_paragraph(
      "A batch of N over K devices is split into chunks of ceil(N / K), as "
      "nn.DataParallel does. If K doesn't divide N, the last chunk is "
      "smaller.");
  explain_idle(flags, rows);
}

void run(const SplitFlags& flags) {
  std::vector<Row> rows;
  for (const int64_t count : flags.devices) {
    rows.push_back({count, chunk_sizes(flags.batch_size, count)});
  }
  flags.as_json ? print_json(flags, rows) : print_table(flags, rows);
}

}  // namespace

void add_split(CLI::App& app) {
  auto* command =
      add_command(app, "split", "Show how a batch is split over devices");
  auto flags = std::make_shared<SplitFlags>();
  add_options(
      *command,
      {{.name = "--batch-size",
        .value = &flags->batch_size,
        .help = "samples per batch",
        .range = at_least(1)},
       {.name = "--devices",
        .value = &flags->devices,
        .help = "numbers of devices",
        .default_text = "2,3,5",
        .range = between(1, 1'000'000)},
       {.name = "--json", .value = &flags->as_json, .help = "print JSON"}});
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
