#include "lockstep/optim/state.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
void export_state(const std::string& name,
                  const std::vector<torch::Tensor>& tensors,
                  std::map<std::string, torch::Tensor>& state) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    state[fmt::format("{}.{}", name, i)] = tensors[i];
  }
}

void import_state(const std::string& name,
                  const std::map<std::string, torch::Tensor>& state,
                  const std::vector<torch::Tensor>& tensors) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string key = fmt::format("{}.{}", name, i);
    const auto found = state.find(key);
    if (found == state.end()) {
      throw CheckpointError(
          {.code = ErrorCode::kStateMismatch,
           .what = fmt::format("the optimizer state has no '{}'", key),
           .fix = "resume with the optimizer that wrote the checkpoint"});
    }
    const torch::Tensor& saved = found->second;
    if (saved.sizes() != tensors[i].sizes() ||
        saved.scalar_type() != tensors[i].scalar_type()) {
      throw CheckpointError(
          {.code = ErrorCode::kStateMismatch,
           .what = fmt::format("optimizer state '{}' has another shape or type",
                               key),
           .expected = c10::str(tensors[i].dtype(), " ", tensors[i].sizes()),
           .got = c10::str(saved.dtype(), " ", saved.sizes()),
           .fix = "resume with the model that wrote the checkpoint"});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].copy_(state.at(fmt::format("{}.{}", name, i)));
  }
}

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace lockstep::optim
