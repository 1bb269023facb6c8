#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/types.h>

namespace lockstep::models {

/// Returns layer(x) for images (N, C, H, W), also under autocast: see
/// product().
///
/// On CPUs, a layer with many weights and small images, both channels_last and
/// in float32 or bfloat16, is computed as matrix products, for which the pixels
/// under the kernel are copied to rows (Chellapilla et al. 2006). These are the
/// layers for which oneDNN reads and writes all weights again for each image.
/// The sums are in the order of the products, so the bits differ from
/// LibTorch's. All other layers are LibTorch's.
torch::Tensor convolve(torch::nn::Conv2dImpl& layer, const torch::Tensor& x);

}  // namespace lockstep::models
