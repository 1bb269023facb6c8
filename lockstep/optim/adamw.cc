#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {
namespace {

using torch::Tensor;

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
      : Optimizer(std::move(parameters), options.lr()),
        options_(options),
        exp_avg_(add_slot("exp_avg", options_.make_state())),
        exp_avg_sq_(add_slot("exp_avg_sq", options_.make_state())) {
    add_step_counts();
    for (const Tensor& parameter : parameters_) {
      const bool decays = !options_.decays() || options_.decays()(parameter);
      weight_decays_.push_back(decays ? options_.weight_decay() : 0);
    }
  }

  std::string options_text() const override {
    const auto [beta1, beta2] = options_.betas();
    const auto decayed =
        std::count_if(weight_decays_.begin(), weight_decays_.end(),
                      [](double decay) { return decay != 0; });
    return fmt::format(
        "AdamW: lr {}, betas {}, {}, eps {}, weight_decay {} of {} parameters",
        lr(), beta1, beta2, options_.eps(), options_.weight_decay(), decayed);
  }

 private:
  void update_block(size_t block, const Tensor& parameter,
                    const Tensor& gradient) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [beta1, beta2] = options_.betas();
    at::_fused_adamw_(parameter, gradient, exp_avg_.view(block),
                      exp_avg_sq_.view(block), /*max_exp_avg_sqs=*/{},
                      step_count_of(block), lr(), beta1, beta2,
                      weight_decays_[parameter_of(block)], options_.eps(),
                      /*amsgrad=*/false, /*maximize=*/false);
  }

  void count_step(const std::vector<bool>& has_gradient) override {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < step_counts_.size(); ++i) {
      if (has_gradient[i]) step_counts_[i].add_(1);
    }
  }

  AdamWOptions options_;
  Slot& exp_avg_;
  Slot& exp_avg_sq_;
  std::vector<double> weight_decays_;  // by parameter
};

void check_range(const char* name, double value, double low, double high) {
  if (value >= low && value < high) return;
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOption,
                .what = fmt::format("invalid {}", name),
                .expected = fmt::format("at least {} and below {}", low, high),
                .got = fmt::format("{}", value)});
}

}  // namespace

std::unique_ptr<Optimizer> adamw(std::vector<Tensor> parameters,
                                 const AdamWOptions& options) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  check_range("learning rate", options.lr(), 0, kAny);
  const auto [beta1, beta2] = options.betas();
  check_range("first beta", beta1, 0, 1);
  check_range("second beta", beta2, 0, 1);
  check_range("eps", options.eps(), 0, kAny);
  check_range("weight decay", options.weight_decay(), 0, kAny);
  return std::make_unique<AdamW>(std::move(parameters), options);
}

}  // namespace lockstep::optim
