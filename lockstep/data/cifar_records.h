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
  std::vector<int> labels;  ///< how many values each label byte may have
  std::vector<float> mean;
  std::vector<float> stddev;
};

/// Records of `files` in their order, each file of any number of them. The last
/// label byte is the class. Throws DataError naming the file, what was expected
/// and what was found.
std::shared_ptr<const Dataset> cifar_records(
    const CifarForm& form, const std::vector<std::string>& files);

}  // namespace lockstep::data
