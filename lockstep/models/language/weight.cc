#include "lockstep/models/language/weight.h"

#include "lockstep/models/parameter_budget.h"

namespace lockstep::models {

Weight::Weight(std::initializer_list<int64_t> shape, const Values& values,
               Init init) {
  ParameterBudget::spend(shape);
  weight = register_parameter("weight", torch::empty(shape));
  if (values.bias > 0) {
    ParameterBudget::spend({values.bias});
    bias = register_parameter("bias", torch::empty({values.bias}));
  }
  if (init == Init::kNone) return;
  const torch::NoGradGuard no_grad;
  weight.normal_(0, values.deviation);
  if (bias.defined()) bias.zero_();
}

std::shared_ptr<Weight> norm_weight(int64_t width, bool has_bias, Init init) {
  const auto norm = std::make_shared<Weight>(
      std::initializer_list<int64_t>{width},
      Weight::Values{.bias = has_bias ? width : 0}, Init::kNone);
  if (init == Init::kNone) return norm;
  const torch::NoGradGuard no_grad;
  norm->weight.fill_(1);
  if (has_bias) norm->bias.zero_();
  return norm;
}

}  // namespace lockstep::models
