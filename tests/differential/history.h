#pragma once

#include <functional>
#include <memory>

#include "tests/differential/strategy.h"
#include "tests/differential/trace.h"

namespace lockstep::differential {

using MakeStrategy = std::function<std::unique_ptr<Strategy>()>;

/// Makes a strategy and does with it what the case's history says:
///
///   step [n]                a step with a batch of n
///   accumulate [n, m]       a step with the gradients of two batches
///   clip [k]                from now on to a norm of k / 4; 0: not at all
///   rate [k]                the learning rate becomes k / 2 of the first
///   freeze [p], unfreeze    parameter p
///   fail_loss [n, s]        a step that sample s makes fail, and zero_grad()
///   fail_backward [n, s]    likewise
///   poison [n, s]           a step whose sample s is NaN, to be skipped
///   evaluate [how, n]       0: NoGradGuard, 1: InferenceMode, 2: eval(),
///                           3: a forward without a backward
///   load []                 the state at the beginning, by torch::load
///   scale [p]               parameter p, by the user
///   cast [k]                0: to float, 1: to double; optimizers are new
///   hook [p]                on the parameter; doubles its gradient
///   keep_gradients []       the next step starts with gradients in .grad
///   set_to_none [0 or 1]    how zero_grad() works from now on
///
/// Parameters, buffers and all that is computed go into the trace, and so does
/// an exception.
/// `counts_twice`: torch's optimizer gets what is registered twice twice.
Trace play(const Case& of, const MakeStrategy& make, bool counts_twice = true);

}  // namespace lockstep::differential
