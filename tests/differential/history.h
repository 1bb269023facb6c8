#pragma once

#include <functional>
#include <memory>

#include "tests/differential/strategy.h"
#include "tests/differential/trace.h"

namespace lockstep::differential {

using MakeStrategy = std::function<std::unique_ptr<Strategy>()>;

/// Makes a strategy and does with it what the case's history says. In any case:
///
///   rate [k]                the learning rates become k / 2 of the first
///   freeze [p], unfreeze    parameter p
///   evaluate [how, n]       0: NoGradGuard, 1: InferenceMode, 2: eval(),
///                           3: a forward without a backward
///   load []                 the state at the beginning, by torch::load
///   scale [p]               parameter p, by the user
///   cast [k]                0: to float, 1: to double; optimizers are new
///   hook [p, k]             on the parameter; doubles its gradient and adds k,
///                           which may be left out. With k, it matters whether
///                           it is called for the batch or for each shard
///
/// In a program, the statements of a training loop:
///
///   backward [n] loss       forward, loss and backward of n samples
///   train_step [n, o, k] loss   with optimizer o, or -1: with none, and with
///                           gradients clipped to k / 4, or 0: not clipped.
///                           A fourth number is the total weight of the steps
///                           whose gradients are added
///   update [o, k]           clips, as above, and calls the optimizer's step()
///   zero_grad [0 or 1]      1: sets gradients to none
///   no_sync [0 or 1]        1: begins it, 0: ends it
///   change_member [k]       a member of the module becomes 1 + k. The results
///                           are those of plain LibTorch with the same
///                           assignment, or the next step is refused
///   rebuild []              of the wrapper
///
/// Changes in a program that are allowed if every rank makes them:
///
///   multiply_rate [o, k]    the rate of optimizer o times k / 4
///   raise_momentum [o]      of LibTorch's optimizer o, or its first beta
///   add_weight_decay [o, k] k / 8, of LibTorch's optimizer o
///   set_state [o, k]        the optimizer's state becomes 0: that before a
///   first
///                           step, 1: one that was trained otherwise
///   write [p, how, k]       to parameter p. 0: with NoGradGuard, 1: through
///                           data(), 2: by set_data(). k is 1: only to its last
///                           element
///   load_other []           other weights, by torch::load
///
/// Statements that make rank r differ from the others. A run on one device
/// executes what the other ranks do. Such a program has to be refused, unless
/// the statement has no effect:
///
///   one_rank_write [r, ...], and likewise for all changes above: one that only
///                           rank r makes
///   one_rank_skips_update [r, o, k]   an update() of all others
///   one_rank_no_sync [r, n] loss      a backward() that r executes under
///                                     no_sync()
///
/// In other cases, steps in the mode of the case:
///
///   step [n]                a step with a batch of n
///   accumulate [n, m]       a step with the gradients of two batches
///   clip [k]                from now on to a norm of k / 4; 0: not at all
///   fail_loss [n, s]        a step that sample s makes fail, and zero_grad()
///   fail_backward [n, s]    likewise
///   poison [n, s]           a step whose sample s is NaN, to be skipped
///   keep_gradients []       the next step starts with gradients in .grad
///   set_to_none [0 or 1]    how zero_grad() works from now on
///
/// Parameters, buffers and all that is computed go into the trace, and so does
/// an exception.
/// `counts_twice`: torch's optimizer gets what is registered twice twice.
Trace play(const Case& of, const MakeStrategy& make, bool counts_twice = true);

/// Label of the entry of a trace after which one rank differs.
inline constexpr auto kOneRankDiffers = "from here on one rank differs";

/// Returns true if the statements of a program keep the order that ranks need:
/// the ranks sum the gradients of no_sync() before an update and before the
/// end. After a statement of one rank, a step without an update follows the
/// last update, so that the ranks can compare what it made.
bool is_ordered(const Case& of);

}  // namespace lockstep::differential
