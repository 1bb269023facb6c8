#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// The binary form that CIFAR-10 and CIFAR-100 share (Krizhevsky, 2009):
/// records of label bytes and 3 x 32 x 32 bytes of image.
struct CifarForm {
  std::string name;         ///< "CIFAR-100"
  std::vector<int> labels;  ///< number of values of each label byte
  std::vector<float> mean;
  std::vector<float> stddev;
};

/// Returns the records of `files` in their order. A file may have any number of
/// records. The last label byte is the class. Throws DataError naming the file,
/// what was expected and what was found.
std::shared_ptr<const Dataset> cifar_records(
    const CifarForm& form, const std::vector<std::string>& files);

}  // namespace lockstep::data
