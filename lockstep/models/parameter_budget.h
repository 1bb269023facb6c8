#pragma once

#include <cstdint>
#include <initializer_list>

namespace lockstep::models {

/// While it lives, make() builds no more on this thread than the budget has:
/// for sizes that come from a file which may be hostile.
class ParameterBudget {
 public:
  /// `elements` in `tensors` parameters.
  ParameterBudget(int64_t elements, int64_t tensors);
  ~ParameterBudget();
  ParameterBudget(const ParameterBudget&) = delete;
  ParameterBudget& operator=(const ParameterBudget&) = delete;

  /// Takes a parameter of `shape` from the thread's budget, if there is one.
  /// Called before the parameter takes memory. Throws InvalidArgument if the
  /// budget has not that much left.
  static void spend(std::initializer_list<int64_t> shape);

 private:
  int64_t elements_;
  int64_t tensors_;
  ParameterBudget* outer_;
};

}  // namespace lockstep::models
