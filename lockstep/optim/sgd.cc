#include "lockstep/optim/sgd.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

using torch::Tensor;

namespace {

bool is_half(at::ScalarType type) {
  return type == torch::kHalf || type == torch::kBFloat16;
}

void update_in_place(const Tensor& parameter, const Tensor& gradient,
                     const Tensor& momentum, const SgdStep& step) {
  const at::TensorList momenta =
      momentum.defined() ? at::TensorList(momentum) : at::TensorList();
  at::_fused_sgd_(parameter, gradient, momenta, step.weight_decay,
                  step.momentum, step.lr, step.dampening, step.nesterov,
                  /*maximize=*/false, step.is_first);
}

class SGD final : public Optimizer {
 public:
  SGD(std::vector<Tensor> parameters, const SGDOptions& options)
      : Optimizer(std::move(parameters), options.lr()), options_(options) {
    if (options_.momentum() == 0) return;
    // The buffers start as zeros, so momentum * 0 + gradient is the gradient.
    // The first step is not a special case.
    momentum_ = &add_slot("momentum_buffer", options_.make_state());
  }

  std::string options_text() const override {
    return fmt::format("SGD: lr {}, momentum {}, weight_decay {}, nesterov {}",
                       lr(), options_.momentum(), options_.weight_decay(),
                       options_.nesterov());
  }

 private:
  void update_block(size_t block, const Tensor& parameter,
                    const Tensor& gradient) override {
    sgd_update(parameter, gradient,
               momentum_ != nullptr ? momentum_->view(block) : Tensor(),
               {.lr = lr(),
                .momentum = options_.momentum(),
                .weight_decay = options_.weight_decay(),
                .nesterov = options_.nesterov()});
  }

  SGDOptions options_;
  Slot* momentum_ = nullptr;  // null without momentum
};

void check_not_negative(const char* name, double value) {
  if (value >= 0) return;
  throw InvalidArgument("optim", {.code = ErrorCode::kBadOption,
                                  .what = fmt::format("invalid {}", name),
                                  .expected = "a number of at least 0",
                                  .got = fmt::format("{}", value)});
}

}  // namespace

void sgd_update(const Tensor& parameter, const Tensor& gradient,
                const Tensor& momentum, const SgdStep& step) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!parameter.is_cpu() || !is_half(parameter.scalar_type())) {
    return update_in_place(parameter, gradient, momentum, step);
  }
  // The CPU kernel of ATen 2.11 skips whole vectors of half and bfloat16
  // (pytorch #191763). In float it is correct, and the copies of the block stay
  // in the cache. The kernel also computes in float for these types.
  const Tensor wide = parameter.to(torch::kFloat);
  const Tensor wide_momentum =
      momentum.defined() ? momentum.to(torch::kFloat) : momentum;
  update_in_place(wide, gradient.to(torch::kFloat), wide_momentum, step);
  parameter.copy_(wide);
  if (momentum.defined()) momentum.copy_(wide_momentum);
}

std::unique_ptr<Optimizer> sgd(std::vector<Tensor> parameters,
                               const SGDOptions& options) {
  check_not_negative("learning rate", options.lr());
  check_not_negative("momentum", options.momentum());
  check_not_negative("weight decay", options.weight_decay());
  if (options.nesterov() && options.momentum() <= 0) {
    throw InvalidArgument("optim",
                          {.code = ErrorCode::kBadOption,
                           .what = "Nesterov needs momentum",
                           .expected = "a momentum above 0",
                           .got = fmt::format("{}", options.momentum()),
                           .fix = "set momentum, 0.9 say"});
  }
  return std::make_unique<SGD>(std::move(parameters), options);
}

}  // namespace lockstep::optim
