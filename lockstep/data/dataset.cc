#include "lockstep/data/dataset.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/synthetic.h"

namespace lockstep::data {

std::shared_ptr<const Dataset> open(const DataSpec& spec, Split split) {
  if (spec.name == "synthetic") {
    return synthetic(spec.seed, spec.samples, split);
  }
  if (spec.name == "cifar10") return cifar10(spec.dir, split, spec.warns);
  throw InvalidArgument(
      "data", {.code = ErrorCode::kUnknownName,
               .what = "there is no dataset '" + spec.name + "'",
               .fix = did_you_mean(spec.name, {"synthetic", "cifar10"})});
}

}  // namespace lockstep::data
