#pragma once

#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// SHA-256, in hex, over the size, the images and the labels of a dataset:
/// what a run that goes on must find again. 0.1 s for CIFAR-10.
std::string fingerprint(const Dataset& dataset);

}  // namespace lockstep::data
