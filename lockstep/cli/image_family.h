#pragma once

#include <memory>

#include "lockstep/cli/model_family.h"

namespace lockstep::cli {

/// Returns the classifiers of images, with their datasets.
std::shared_ptr<ModelFamily> make_image_family();

}  // namespace lockstep::cli
