#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Opens CIFAR-10 in its binary form (Krizhevsky, 2009): records of a label
/// byte and 3 x 32 x 32 bytes of image. kTrain is every data_batch_*.bin in
/// `dir`, in the order of their names. kTest is test_batch.bin. A file may hold
/// any number of records.
///
/// If `warns`, logs which of the five files of CIFAR-10 are missing.
///
/// Throws DataError naming the file, what was expected and what was found.
std::shared_ptr<const Dataset> cifar10(const std::string& dir, Split split,
                                       bool warns = true);

}  // namespace lockstep::data
