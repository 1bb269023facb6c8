#pragma once

#include <memory>

#include "lockstep/data/loader.h"
#include "lockstep/train/plan.h"

namespace lockstep::train {

/// Fits a model to the data: its classes and, for an mlp, its inputs.
models::ModelSpec fit(models::ModelSpec model, const data::Dataset& dataset);

/// A loader of this rank's part of every batch of `split`.
std::unique_ptr<data::Loader> make_loader(
    const TrainOptions& options, const Plan& plan, data::Split split,
    std::shared_ptr<const data::Dataset> dataset);

}  // namespace lockstep::train
