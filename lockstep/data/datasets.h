#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

// The datasets that open() knows. Those with files throw DataError naming the
// file, what was expected and what was found.
namespace lockstep::data {

/// Makes procedural 32x32 images of 10 shapes and patterns: disk, ring, square,
/// frame, triangle, plus, cross, horizontal and vertical stripes, checkers.
/// Place, size, angle, phase, colours, light and noise are random. The figure
/// is brighter than its ground. A mirrored image has the same class.
///
/// Image i depends only on (seed, split, i), bit for bit on every machine.
/// There are `samples` images for training (0: 10,000), and a fifth of that for
/// testing. Throws InvalidArgument unless samples is in 0..1,000,000.
std::shared_ptr<const Dataset> synthetic(uint64_t seed, int64_t samples,
                                         Split split);

/// Opens CIFAR-10 in its binary form (Krizhevsky, 2009): records of a label
/// byte and 3 x 32 x 32 bytes of image. kTrain is every data_batch_*.bin in
/// `dir`, in the order of their names. kTest is test_batch.bin. A file may hold
/// any number of records.
///
/// If `warns`, logs which of the five files of CIFAR-10 are missing.
std::shared_ptr<const Dataset> cifar10(const std::string& dir, Split split,
                                       bool warns = true);

/// Opens CIFAR-100 in its binary form: train.bin and test.bin in `dir`, records
/// of a coarse label, a fine label and 3 x 32 x 32 bytes of image. The classes
/// are the 100 fine labels.
std::shared_ptr<const Dataset> cifar100(const std::string& dir, Split split);

/// Opens MNIST (LeCun, Cortes and Burges): gray images of 28 x 28 pixels, in
/// the files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... of
/// `dir`, each either plain or with .gz. Digits are not mirrored.
std::shared_ptr<const Dataset> mnist(const std::string& dir, Split split);

/// Opens Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): the same files, with
/// clothes.
std::shared_ptr<const Dataset> fashion_mnist(const std::string& dir,
                                             Split split);

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
