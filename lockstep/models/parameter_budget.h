#pragma once

#include <cstdint>
#include <initializer_list>

namespace lockstep::models {

/// Limits what make() may build on this thread during its lifetime. It is meant
/// for sizes from a file that may be hostile.
class ParameterBudget {
 public:
  /// Allows `elements` elements in `tensors` parameters.
  ParameterBudget(int64_t elements, int64_t tensors);
  ~ParameterBudget();
  ParameterBudget(const ParameterBudget&) = delete;
  ParameterBudget& operator=(const ParameterBudget&) = delete;

  /// Takes a parameter of `shape` from the thread's budget, if there is one.
  /// Called before memory is allocated for the parameter. Throws
  /// InvalidArgument if the rest of the budget is too small.
  static void spend(std::initializer_list<int64_t> shape);

 private:
  int64_t elements_;
  int64_t tensors_;
  ParameterBudget* outer_;
};

}  // namespace lockstep::models
