#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Opens a tree of JPEG and PNG files, as torchvision's ImageFolder does:
/// dir/train/CLASS/... for training, dir/val/CLASS/... (or dir/test, if there
/// is no dir/val) for testing. The classes are the folders of dir/train in the
/// order of their names (by their bytes), so a class has the same number in
/// both splits. Images are ordered by class, then folder, then name. Files
/// whose names don't end in .jpg, .jpeg or .png are left out. If `warns`, their
/// number is logged.
///
/// Images are resized to `image_size` x `image_size` by fit_image(), and
/// normalised with the mean and deviation of ImageNet. A file is read and
/// decoded each time its image is read, by the thread that reads it. Only names
/// are kept in memory.
///
/// The fingerprint covers the size of the images, and the names and sizes of
/// the files. It does not cover their contents, which may take more than a
/// minute to read.
///
/// Throws DataError naming the folder if a split is missing, a class has no
/// training image, or the test split has a class without training images.
/// Throws InvalidArgument unless image_size is in 8..1024.
std::shared_ptr<const Dataset> image_folder(const std::string& dir, Split split,
                                            int64_t image_size,
                                            bool warns = true);

}  // namespace lockstep::data
