#include "lockstep/data/fingerprint.h"

#include <fmt/format.h>

#include "lockstep/base/checksum.h"

namespace lockstep::data {

std::string fingerprint(const Dataset& dataset) {
  Sha256 digest;
  digest.add(fmt::format("{} x {},{},{} of {};", dataset.size(),
                         dataset.channels(), dataset.height(), dataset.width(),
                         dataset.classes()));
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const int64_t label = dataset.label(i);
    digest.add(std::as_bytes(std::span(&label, 1)));
    digest.add(std::as_bytes(dataset.image(i)));
  }
  return digest.hex();
}

}  // namespace lockstep::data
