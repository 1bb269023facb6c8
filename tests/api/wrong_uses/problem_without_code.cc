// An error whose code was forgotten.
// expects: RequiredErrorCode
#include "lockstep/base/error.h"

int main() {
  const lockstep::Problem problem{.what = "the file is empty"};
  throw lockstep::DataError(problem);
}
