#include "lockstep/parallel/module/parameter_writes.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

int64_t version_of(const torch::Tensor& parameter) {
  return parameter.is_inference() ? 0 : parameter._version();
}

}  // namespace

ParameterWrites::ParameterWrites(const std::vector<torch::Tensor>& parameters)
    : parameters_(parameters) {
  versions_.reserve(parameters.size());
  for (const torch::Tensor& parameter : parameters) {
    versions_.push_back(version_of(parameter));
  }
}

std::optional<size_t> ParameterWrites::first() const {
  for (size_t p = 0; p < versions_.size(); ++p) {
    if (version_of(parameters_[p]) != versions_[p]) return p;
  }
  return std::nullopt;
}

void refuse_written_parameter(const std::string& name, int ranks,
                              const std::string& failure) {
  const std::string shares =
      ranks > 1 ? "each rank has its own copy of it"
                : "shards that compute at the same time share it";
  // Ranks on one host share the parameters after a train_step().
  const std::string unshare =
      ranks > 1 ? "model->unshare_parameters(); " : std::string();
  throw ParallelError(
      "parallel",
      {.code = ErrorCode::kParameterWritten,
       .what = fmt::format("the module or the loss wrote to parameter '{}' "
                           "while it computed, and {}{}",
                           name, shares,
                           failure.empty() ? "" : " (then: " + failure + ")"),
       .expected = "a forward that only reads the parameters",
       .fix = fmt::format(
           "change parameters between steps: instead of Embedding's max_norm, "
           "run {{ torch::NoGradGuard no_grad; {}weight.copy_(weight.renorm(2, "
           "0, max_norm)); }} after wrapping the module and after each step",
           unshare)});
}

}  // namespace lockstep
