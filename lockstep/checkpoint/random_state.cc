#include "lockstep/checkpoint/random_state.h"

#include <mutex>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep {
namespace {

// Returns LibTorch's default generators by name.
std::map<std::string, at::Generator> generators(
    const std::vector<Device>& devices) {
  std::map<std::string, at::Generator> found{
      {"cpu", at::globalContext().defaultGenerator(torch::kCPU)}};
  for (const Device& device : devices) {
    if (device.is_cpu()) continue;
    found.emplace(device.name(),
                  at::globalContext().defaultGenerator(torch_device(device)));
  }
  return found;
}

}  // namespace

std::map<std::string, torch::Tensor> random_state(
    const std::vector<Device>& devices) {
  std::map<std::string, torch::Tensor> state;
  for (auto& [name, generator] : generators(devices)) {
    const std::lock_guard lock(generator.mutex());
    state[name] = generator.get_state();
  }
  return state;
}

void set_random_state(const std::map<std::string, torch::Tensor>& state,
                      const std::vector<Device>& devices) {
  for (auto& [name, generator] : generators(devices)) {
    const auto saved = state.find(name);
    if (saved == state.end() && name == "cpu") {
      throw CheckpointError(
          {.code = ErrorCode::kStateMismatch,
           .what = "the checkpoint has no state of the random numbers of cpu",
           .fix = "use another checkpoint"});
    }
    if (saved == state.end()) continue;  // a GPU that the run did not use
    try {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(saved->second);
    } catch (const std::exception& error) {
      throw CheckpointError(
          {.code = ErrorCode::kStateMismatch,
           .what = fmt::format("the state of the random numbers of {} can't "
                               "be used",
                               name),
           .got = first_line(text_of(error)),
           .fix = "use another checkpoint"});
    }
  }
}

}  // namespace lockstep
