#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"
#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

using torch::Tensor;

Optimizer::Optimizer(std::vector<Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr) {
  if (parameters_.empty()) {
    throw InvalidArgument(
        "optim",
        {.code = ErrorCode::kBadOptimizer,
         .what = "an optimizer got no parameters",
         .fix = "pass model->parameters(), after the layers are registered"});
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (!can_be_cut(parameter)) {
      throw InvalidArgument(
          "optim", {.code = ErrorCode::kBadOptimizer,
                    .what = fmt::format("parameter {} can't be optimized", i),
                    .expected = "a dense floating-point tensor",
                    .got = parameter.defined() ? parameter.toString()
                                               : "an undefined one"});
    }
  }
  check_no_duplicates();
  blocks_ = cut_into_blocks(parameters_);
  for (const Tensor& parameter : parameters_) {
    layouts_.push_back(layout_of(parameter));
  }
  refresh_views();
}

void Optimizer::check_no_duplicates() const {
  const size_t count = unique(parameters_).size();
  if (count == parameters_.size()) return;
  const size_t twice = parameters_.size() - count;
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = fmt::format(
           "of {}, {} listed twice (a submodule that is "
           "registered twice?); torch::optim would update "
           "{} twice in each step, PyTorch once",
           counted(static_cast<int64_t>(parameters_.size()), "parameter"),
           twice == 1 ? "1 is" : fmt::format("{} are", twice),
           twice == 1 ? "it" : "them"),
       .expected = "each parameter once",
       .fix = "pass lockstep::optim::unique(model->parameters())"});
}

std::vector<Tensor> unique(const std::vector<Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<Tensor> once;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      once.push_back(parameter);
    }
  }
  return once;
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

Optimizer::Slot Optimizer::make_slot(const StateFactory& make) {
  Slot slot;
  for (const Tensor& parameter : parameters_) {
    slot.tensors.push_back(make ? make(parameter)
                                : torch::zeros_like(parameter.detach()));
    const bool is_shared = is_shared_tensor(slot.tensors.back());
    has_shared_state_ = has_shared_state_ || is_shared;
    has_own_state_ = has_own_state_ || !is_shared;
  }
  slot.views = block_views(slot.tensors);
  return slot;
}

std::vector<Tensor> Optimizer::zero_steps() const {
  std::vector<Tensor> steps;
  for (const Tensor& parameter : parameters_) {
    steps.push_back(torch::zeros(
        {}, torch::dtype(torch::kFloat32).device(parameter.device())));
  }
  return steps;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensors] : named_state()) bytes += bytes_of(tensors);
  return bytes;
}

std::map<std::string, Tensor> Optimizer::state_dict() const {
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensors] : named_state()) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      state[fmt::format("{}.{}", name, i)] = tensors[i];
    }
  }
  return state;
}

void Optimizer::load_state_dict(const std::map<std::string, Tensor>& state) {
  for (const auto& [name, tensors] : named_state()) {
    load_tensors(name, tensors, state);
  }
}

void Optimizer::load_tensors(const std::string& name,
                             const std::vector<Tensor>& tensors,
                             const std::map<std::string, Tensor>& state) {
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
    const Tensor& saved = found->second;
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

void Optimizer::refresh_views() {
  data_.clear();
  for (const Tensor& parameter : parameters_) {
    data_.push_back(parameter.const_data_ptr());
  }
  parameter_views_ = block_views(parameters_);
}

Optimizer::Layout Optimizer::layout_of(const Tensor& tensor) {
  return {.options = tensor.options(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

void Optimizer::check_layout(size_t p) const {
  const Tensor& parameter = parameters_[p];
  const Layout& first = layouts_[p];
  const auto has_strides = [&] {
    for (int64_t d = 0; d < parameter.dim(); ++d) {
      // The stride of a dimension of size 1 does not matter.
      if (parameter.size(d) > 1 &&
          parameter.stride(d) != first.strides[static_cast<size_t>(d)]) {
        return false;
      }
    }
    return true;
  };
  if (parameter.options().type_equal(first.options) &&
      parameter.device() == first.options.device() &&
      parameter.sizes() == at::IntArrayRef(first.sizes) && has_strides()) {
    return;
  }
  const Layout now = layout_of(parameter);
  const auto describe = [](const Layout& layout) {
    return c10::str(layout.options.dtype(), " on ", layout.options.device(),
                    ", shape ", at::IntArrayRef(layout.sizes), ", strides ",
                    at::IntArrayRef(layout.strides));
  };
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = fmt::format(
                    "parameter {} changed after the optimizer was made", p),
                .expected = describe(first),
                .got = describe(now),
                .fix = "call to() first and make the optimizer after it"});
}

void Optimizer::begin_step(const std::vector<bool>& has_gradient) {
  bool moved = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    check_layout(i);
    moved = moved || parameters_[i].const_data_ptr() != data_[i];
  }
  if (moved) refresh_views();
  ++steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_gradient[i]) torch::autograd::impl::bump_version(parameters_[i]);
  }
  count_step(has_gradient);
}

void Optimizer::check_not_shared() const {
  const bool shares_parameters =
      std::any_of(parameters_.begin(), parameters_.end(), is_shared_tensor);
  if (!shares_parameters && !has_shared_state_) return;
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = fmt::format("step() of an optimizer whose {} all ranks share: "
                           "each of them would make the update",
                           shares_parameters ? "parameters" : "state"),
       .expected = "the optimizer to be passed to train_step()",
       .fix = "pass it there; or, to call step() on each rank, make it "
              "without make_state and call train_step() without it"});
}

void Optimizer::step() {
  check_not_shared();
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
  const auto on_gpu =
      std::find_if(parameters_.begin(), parameters_.end(),
                   [](const Tensor& parameter) { return !parameter.is_cpu(); });
  const c10::DeviceType device =
      on_gpu == parameters_.end() ? torch::kCPU : on_gpu->device().type();
  intra_op_for(device, count, [&](int64_t begin, int64_t end) {
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
