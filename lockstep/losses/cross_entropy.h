#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"

namespace lockstep {

/// Computes torch::nn::functional::cross_entropy and the weight that its mean
/// is divided by. With the weight, the loss of a batch is the loss of all its
/// targets together, however they are distributed over shards, ranks and
/// micro-steps.
///
/// `logits` is (C), (N, C) or (N, C, d1, ...); `targets` holds classes (int64)
/// of shape (), (N) or (N, d1, ...), or probabilities of the shape of `logits`.
/// `options` are torch's: class weights, ignore_index, label_smoothing;
/// `reduction` must be kMean, the default.
///
/// The weight is the number of targets that are not ignored. With class weights
/// it is the sum of the weights of these targets, and with probabilities it is
/// the number of predictions. If it is 0, the loss and its gradients are 0
/// (torch returns NaN). It is a scalar on the host: if `targets` are on a GPU,
/// the call waits for the GPU.
///
/// Throws InvalidArgument for another reduction, and for label smoothing if the
/// classes of all targets have the weight 0. Rethrows torch's errors.
WeightedLoss cross_entropy(
    const torch::Tensor& logits, const torch::Tensor& targets,
    const torch::nn::functional::CrossEntropyFuncOptions& options = {});

}  // namespace lockstep
