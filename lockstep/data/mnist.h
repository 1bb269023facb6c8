#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Opens MNIST (LeCun, Cortes and Burges): gray images of 28 x 28 pixels, in
/// the files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... of
/// `dir`, each either plain or with .gz. Digits are not mirrored.
///
/// Throws DataError naming the file, what was expected and what was found.
std::shared_ptr<const Dataset> mnist(const std::string& dir, Split split);

/// Opens Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): the same files, with
/// clothes.
std::shared_ptr<const Dataset> fashion_mnist(const std::string& dir,
                                             Split split);

}  // namespace lockstep::data
