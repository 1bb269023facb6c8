#include "lockstep/parallel/exchange/verify_ranks.h"

#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/tensor_checksum.h"

namespace lockstep {
namespace {

std::string describe(const ModuleHandle& module) {
  std::string text;
  const auto add = [&](const char* kind, const ModuleHandle::Named& named) {
    for (const auto& [name, tensor] : named) {
      text += fmt::format(
          "{} '{}': {} {}{}{}\n", kind, name,
          c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()),
          tensor.is_contiguous() ? ""
                                 : ", strides " + c10::str(tensor.strides()),
          tensor.requires_grad() ? "" : ", frozen");
    }
  };
  add("parameter", module.parameters);
  add("buffer", module.buffers);
  return text;
}

/// Returns "name: checksum" lines, one for each parameter.
std::string checksums_of(const ModuleHandle& module,
                         const std::vector<size_t>& unique,
                         const std::vector<torch::Tensor>& gradients) {
  std::string text;
  for (size_t i = 0; i < unique.size(); ++i) {
    const torch::Tensor& gradient = gradients[unique[i]];
    text += fmt::format("'{}': {}\n", module.parameters[i].first,
                        gradient.defined() ? checksum_of(gradient) : "none");
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Throws ParallelError if a rank's `text` differs from rank 0's. The error
/// shows the first line that differs.
void verify_text(const ProcessGroup& world, const std::string& text,
                 const char* thing, const char* fix) {
  const auto all = world.all_gather_text(text);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto first = lines_of(all[0]);
    const auto other = lines_of(all[rank]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto at = [&](const std::vector<std::string>& lines) {
      return i < lines.size() ? lines[i] : std::string("no more");
    };
    throw ParallelError(
        "ddp", {.code = ErrorCode::kParametersDiffer,
                .what = fmt::format("rank {} has {} than rank 0", rank, thing),
                .expected = fmt::format("rank 0's {}", at(first)),
                .got = at(other),
                .fix = fix});
  }
}

}  // namespace

void verify_ranks(const ProcessGroup& world, const ModuleHandle& module) {
  verify_text(world, describe(module), "another model",
              "build the same model on every rank");
}

void verify_gradients(const ProcessGroup& world, const ModuleHandle& module,
                      const std::vector<size_t>& unique,
                      const std::vector<torch::Tensor>& gradients) {
  verify_text(world, checksums_of(module, unique, gradients),
              "another gradient",
              "accumulate with train_step(), which gives every rank the same "
              "sums, and let hooks do the same on every rank");
}

}  // namespace lockstep
