#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

using torch::Tensor;

Optimizer::Optimizer(std::vector<Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr) {
  if (parameters_.empty()) {
    throw InvalidArgument(
        "optim",
        {.what = "an optimizer got no parameters",
         .fix = "pass model->parameters(), after the layers are registered"});
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (!parameter.defined() || !parameter.is_floating_point() ||
        parameter.layout() != torch::kStrided ||
        !parameter.is_non_overlapping_and_dense()) {
      throw InvalidArgument(
          "optim", {.what = fmt::format("parameter {} can't be optimized", i),
                    .expected = "a dense floating-point tensor",
                    .got = parameter.defined() ? parameter.toString()
                                               : "an undefined one"});
    }
  }
  drop_duplicates();
  blocks_ = cut_into_blocks(parameters_);
  refresh_views();
}

void Optimizer::drop_duplicates() {
  std::unordered_set<const void*> seen;
  const size_t listed = parameters_.size();
  std::erase_if(parameters_, [&](const Tensor& parameter) {
    return !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  if (parameters_.size() == listed) return;
  warn_once("duplicate-parameters", "optim",
            fmt::format("{} of {} parameters are listed twice (a submodule "
                        "that is registered twice?); each is updated once",
                        listed - parameters_.size(), listed));
}

std::vector<Tensor> Optimizer::block_views(
    const std::vector<Tensor>& tensors) const {
  std::vector<Tensor> views;
  views.reserve(blocks_.size());
  for (const Block& block : blocks_) {
    const Tensor& tensor = tensors[static_cast<size_t>(block.tensor)];
    views.push_back(memory_view(tensor, block.offset, block.length));
  }
  return views;
}

std::vector<Tensor> Optimizer::zeros_like_parameters(
    const StateFactory& make) const {
  std::vector<Tensor> zeros;
  zeros.reserve(parameters_.size());
  for (const Tensor& parameter : parameters_) {
    zeros.push_back(make ? make(parameter)
                         : torch::zeros_like(parameter.detach()));
  }
  return zeros;
}

void Optimizer::refresh_views() {
  data_.clear();
  options_.clear();
  for (const Tensor& parameter : parameters_) {
    data_.push_back(parameter.const_data_ptr());
    options_.push_back(parameter.options());
  }
  parameter_views_ = block_views(parameters_);
}

void Optimizer::begin_step(const std::vector<bool>& has_gradient) {
  bool moved = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    moved = moved || parameters_[i].const_data_ptr() != data_[i];
    if (parameters_[i].options().type_equal(options_[i]) &&
        parameters_[i].device() == options_[i].device()) {
      continue;
    }
    throw InvalidArgument(
        "optim",
        {.what = fmt::format("parameter {} changed after the optimizer was "
                             "made",
                             i),
         .expected =
             c10::str(options_[i].dtype(), " on ", options_[i].device()),
         .got =
             c10::str(parameters_[i].dtype(), " on ", parameters_[i].device()),
         .fix = "call to() first and make the optimizer after it"});
  }
  if (moved) refresh_views();
  ++steps_;
  count_step(has_gradient);
}

void Optimizer::step() {
  std::vector<Tensor> gradients(parameters_.size());
  std::vector<bool> has_gradient(parameters_.size());
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      has_gradient[i] = true;
      gradients[i] = laid_out_like(gradient, parameters_[i]);
    }
  }
  begin_step(has_gradient);
  const auto count = static_cast<int64_t>(blocks_.size());
  intra_op_for(count, [&](int64_t begin, int64_t end) {
    torch::NoGradGuard no_grad;
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks_[static_cast<size_t>(b)];
      const Tensor& gradient = gradients[static_cast<size_t>(block.tensor)];
      if (!gradient.defined()) continue;
      update(b, memory_view(gradient, block.offset, block.length));
    }
  });
}

void Optimizer::zero_grad() {
  for (Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace lockstep::optim
