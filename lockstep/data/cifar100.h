#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Opens CIFAR-100 in its binary form: train.bin and test.bin in `dir`, records
/// of a coarse label, a fine label and 3 x 32 x 32 bytes of image. The classes
/// are the 100 fine labels.
///
/// Throws DataError naming the file, what was expected and what was found.
std::shared_ptr<const Dataset> cifar100(const std::string& dir, Split split);

}  // namespace lockstep::data
