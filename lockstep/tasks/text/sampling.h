#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/data/random_stream.h"

namespace lockstep::tasks {

/// Options for choosing the next token by its probability.
struct SamplingOptions {
  /// Divisor of the logits. Values below 1 favour likely tokens. 0 takes the
  /// likeliest.
  double temperature = 1;
  int64_t top_k = 0;  ///< number of likeliest tokens to choose from; 0: all
  /// Total probability of the likeliest tokens to choose from (nucleus
  /// sampling, Holtzman et al. 2019).
  double top_p = 1;
};

/// Throws InvalidArgument naming the invalid option.
void check(const SamplingOptions& options);

/// Chooses a token, given the logits (vocabulary) of a model. Takes one number
/// from `random`. Throws InvalidArgument for logits that are not finite.
int64_t sample(const torch::Tensor& logits, const SamplingOptions& options,
               data::RandomStream& random);

}  // namespace lockstep::tasks
