#include "lockstep/models/parameter_budget.h"

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

thread_local ParameterBudget* current = nullptr;

}  // namespace

ParameterBudget::ParameterBudget(int64_t elements, int64_t tensors)
    : elements_(elements), tensors_(tensors), outer_(current) {
  current = this;
}

ParameterBudget::~ParameterBudget() { current = outer_; }

void ParameterBudget::spend(std::initializer_list<int64_t> shape) {
  if (current == nullptr) return;
  // Divides instead of multiplying, as the product of a file's sizes may
  // overflow.
  int64_t left = current->elements_;
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size > 0) left /= size;
    count = left > 0 ? count * size : count;
  }
  if (left < 1 || --current->tensors_ < 0) {
    throw InvalidArgument(
        "models", {.code = ErrorCode::kBadOption,
                   .what = "the model has more parameters than it may have"});
  }
  current->elements_ -= count;
}

}  // namespace lockstep::models
