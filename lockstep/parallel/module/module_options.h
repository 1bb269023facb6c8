#pragma once

#include <functional>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace lockstep {

/// Functions that give `copy` the options (a dropout's p, a convolution's
/// stride) that `original` has when they are called; for the modules of
/// torch::nn in them, which must be alike. What a module of the user's holds
/// beside its registered parts can't be read from here.
///
/// The results keep the submodules that they read and write.
std::vector<std::function<void()>> follow_options(
    const torch::nn::Module& original, torch::nn::Module& copy);

}  // namespace lockstep
