#pragma once

#include <functional>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace lockstep {

/// Returns functions that give `copy` the options (a dropout's p, a
/// convolution's stride) that `original` has when they are called. Covers the
/// torch::nn modules in both, which must have the same structure. Other data
/// that a user's module holds besides its registered parts can't be read.
///
/// The functions keep the submodules that they read and write alive.
std::vector<std::function<void()>> follow_options(
    const torch::nn::Module& original, torch::nn::Module& copy);

}  // namespace lockstep
