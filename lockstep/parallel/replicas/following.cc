// How ReplicaGroup follows a module that changes after it was wrapped.
#include <algorithm>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Tensors without data, laid out like `parameters`.
std::vector<Tensor> layout_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> layout;
  for (const Tensor& parameter : parameters) {
    layout.push_back(torch::empty_strided(
        parameter.sizes(), parameter.strides(),
        torch::dtype(parameter.scalar_type()).device(torch::kMeta)));
  }
  return layout;
}

bool is_laid_out_as(const std::vector<Tensor>& layout,
                    const std::vector<Tensor>& parameters) {
  return std::equal(layout.begin(), layout.end(), parameters.begin(),
                    parameters.end(), [](const Tensor& a, const Tensor& b) {
                      return a.scalar_type() == b.scalar_type() &&
                             a.sizes() == b.sizes() &&
                             a.strides() == b.strides();
                    });
}

}  // namespace

void ReplicaGroup::read_original() {
  original_ = read_module_();
  identity_ = original_.identity();
  check_on_device(original_, devices_[0]);
  parameters_.clear();
  unique_.clear();
  std::unordered_map<const void*, size_t> places;
  for (const auto& [name, parameter] : original_.parameters) {
    const auto [place, is_new] =
        places.try_emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
    if (is_new) parameters_.push_back(parameter);
    unique_.push_back(place->second);
  }
  blocks_ = optim::cut_into_blocks(parameters_);
}

void ReplicaGroup::make_exchange() {
  exchange_.reset();
  exchange_ = make_rank_exchange(options_.world(), original_, parameters_,
                                 shards_, devices_);
  layout_ = layout_of(parameters_);
}

void ReplicaGroup::rebuild() {
  const c10::InferenceMode normal(false);
  ++build_;
  buffer_snapshot_.clear();
  layout_.clear();  // the ranks meet again at the next step
  try {
    read_original();
    replicas_.clear();
    make_replicas();
  } catch (...) {
    // There may be no replicas now: the next forward has to try again.
    identity_.clear();
    throw;
  }
}

void ReplicaGroup::follow_module() {
  if (original_.identity() == identity_) return;
  rebuild();
  if (build_ == 10) {
    warn_once("rebuilt-often", "parallel",
              "the module's members changed ten times after it was wrapped; "
              "each time all replicas are made anew: keep what changes at "
              "every step outside of the module");
  }
}

void ReplicaGroup::begin_step(const optim::Optimizer* optimizer) {
  if (!exchange_) return;
  follow_module();
  // A cast or a new shape is another layout of what the ranks send.
  if (!is_laid_out_as(layout_, parameters_)) make_exchange();
  exchange_->begin_step(optimizer != nullptr);
  if (optimizer && optimizer->has_own_state() && rank() == 0 &&
      options_.world().can_share_memory()) {
    warn_once("own-optimizer-state", "ddp",
              "each rank updates a part of the parameters, and the optimizer's "
              "state was made on each rank by itself: state_dict() has that "
              "part only; pass make_state = model->make_state() to the "
              "optimizer");
  }
}

void ReplicaGroup::check_build(const Region& region) const {
  if (region.build == build_) return;
  throw InvalidArgument(
      "parallel", {.code = ErrorCode::kModuleChanged,
                   .what = "backward through a forward whose replicas are gone",
                   .expected = "the module as it was in that forward",
                   .got = "a submodule or a tensor of it was replaced since",
                   .fix = "call backward() first, then change the module"});
}

}  // namespace lockstep
