#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/world.h"
#include "lockstep/train/state/resume.h"

// The entries of a run's state by name: those of the optimizer, and those of
// the other parts of a run that have state.
namespace lockstep::train {

inline constexpr const char* kCallback = "callback.";
inline constexpr const char* kLossScaler = "loss_scaler.";
inline constexpr const char* kOuterStep = "outer_step.";
inline constexpr const char* kSpikes = "spikes.";
inline constexpr const char* kPowerSgd = "powersgd.";

/// Returns true if an entry belongs to a part of the run other than its
/// optimizer. (The optimizers of ranks that step locally have entries with a
/// prefix of the rank.)
bool is_beside(const std::string& name);

/// Returns "rank.1.".
std::string prefix_of_rank(int rank);
/// Returns the states of all ranks, each with its prefix. Collective.
OptimizerState of_all_ranks(const World& world, const OptimizerState& own);
/// Returns the entries whose names begin with `prefix`, without the prefix.
OptimizerState part_of(const OptimizerState& state, const std::string& prefix);

/// Returns `saved` with the entries that this run has, which are those of
/// `like`. If the settings have changed, the run may have different entries
/// besides the optimizer's. New ones get their values from `like`.
OptimizerState of_this_run(OptimizerState saved, const OptimizerState& like);

/// Returns the number of ranks whose state of PowerSGD was saved; nothing if
/// `resumed` does not say.
std::optional<int64_t> saved_ranks(const Resume& resumed);

/// Returns a checksum of the bytes of all these tensors.
std::string digest_of(const NamedTensors& parameters,
                      const OptimizerState& state);

}  // namespace lockstep::train
