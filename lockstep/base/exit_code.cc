#include "lockstep/base/exit_code.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool is_train_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const TrainError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) {
    return kExitBadUsage;
  }
  if (dynamic_cast<const TrainError*>(&error) != nullptr) {
    return kExitTrainingFailed;
  }
  const auto* caused = dynamic_cast<const std::nested_exception*>(&error);
  if (caused != nullptr && caused->nested_ptr() != nullptr &&
      is_train_error(caused->nested_ptr())) {
    return kExitTrainingFailed;
  }
  return kExitFailed;
}

}  // namespace lockstep
