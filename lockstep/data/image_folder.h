#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// A tree of JPEG and PNG files, as torchvision's ImageFolder reads it:
/// dir/train/CLASS/... to train on, dir/val/CLASS/... (or dir/test, where there
/// is no dir/val) to test on. The classes are the folders of dir/train in the
/// order of their names (by their bytes), so a class has one number in both
/// splits. Images are in the order of their classes, then folders, then names.
/// Files that end otherwise than in .jpg, .jpeg or .png are left out; with
/// `warns`, the log tells how many.
///
/// Images are made `image_size` x `image_size` by fit_image(), and normalised
/// by ImageNet's mean and deviation. A file is read and decoded each time that
/// its image is read, by the thread that reads it: only names are in memory.
///
/// The fingerprint is over the size of the images, and names and sizes of the
/// files: not over their contents, which may be more than can be read in a
/// minute.
///
/// Throws DataError naming the folder if it lacks a split, a class has no image
/// to train on, or the test split has a class that is not trained;
/// InvalidArgument unless image_size is in 8..1024.
std::shared_ptr<const Dataset> image_folder(const std::string& dir, Split split,
                                            int64_t image_size,
                                            bool warns = true);

}  // namespace lockstep::data
