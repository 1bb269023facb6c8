#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/data/random_stream.h"

namespace lockstep::tasks {

/// How the next token is chosen by its probability.
struct SamplingOptions {
  /// The logits are divided by it: below 1 the likely tokens are preferred; 0
  /// takes the likeliest.
  double temperature = 1;
  int64_t top_k = 0;  ///< of so many likeliest tokens; 0: of all
  /// Of the likeliest tokens that have this much probability together (nucleus
  /// sampling, Holtzman et al. 2019).
  double top_p = 1;
};

/// Throws InvalidArgument naming what can't be.
void check(const SamplingOptions& options);

/// A token, given the logits (vocabulary) of a model. Takes one number from
/// `random`. Throws InvalidArgument for logits that are not finite.
int64_t sample(const torch::Tensor& logits, const SamplingOptions& options,
               data::RandomStream& random);

}  // namespace lockstep::tasks
