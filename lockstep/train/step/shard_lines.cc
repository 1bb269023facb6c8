#include "lockstep/train/step/shard_lines.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/terminal.h"
#include "lockstep/device/worker.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep::train {
namespace {

// Returns the shape of the first tensor, as Python prints a list.
std::string shape_of(const std::vector<c10::IValue>& inputs) {
  std::string shape;
  for (const c10::IValue& input : inputs) {
    for_each_tensor(
        input, [&](const torch::Tensor& tensor, const std::string&) {
          if (shape.empty()) {
            shape = fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
          }
        });
  }
  return shape;
}

}  // namespace

struct ShardLines::Seen {
  std::mutex mutex;
  std::map<int64_t, std::string> shapes;  // by shard
};

ShardLines::ShardLines() : seen_(std::make_shared<Seen>()) {}

void ShardLines::operator()(const std::vector<c10::IValue>& inputs) const {
  if (!torch::GradMode::is_enabled()) return;  // an evaluation
  const std::string shape = shape_of(inputs);
  const std::lock_guard lock(seen_->mutex);
  std::string& seen = seen_->shapes[current_shard()];
  if (seen == shape) return;
  seen = shape;
  // Writes the whole line at once, in place of a progress bar.
  const std::string line =
      fmt::format("{}Inside model on device {}, shape {}\n",
                  is_terminal(STDOUT_FILENO) ? "\r\x1b[2K" : "",
                  current_device().name(), shape);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace lockstep::train
