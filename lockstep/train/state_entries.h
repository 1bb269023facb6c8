#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/world.h"
#include "lockstep/train/resume.h"

// The entries of a run's state by name: those of the optimizer, and of what a
// run has beside it.
namespace lockstep::train {

inline constexpr const char* kCallback = "callback.";
inline constexpr const char* kLossScaler = "loss_scaler.";
inline constexpr const char* kOuterStep = "outer_step.";
inline constexpr const char* kSpikes = "spikes.";
inline constexpr const char* kPowerSgd = "powersgd.";

/// Whether an entry is of what a run has beside its optimizer. (The optimizers
/// of ranks that step locally have names of their own.)
bool is_beside(const std::string& name);

/// "rank.1.".
std::string prefix_of_rank(int rank);
/// The states of all ranks, each with its prefix. Collective.
OptimizerState of_all_ranks(const World& world, const OptimizerState& own);
/// The entries whose names begin with `prefix`, without it.
OptimizerState part_of(const OptimizerState& state, const std::string& prefix);

/// `saved` with the entries of this run, whose own are `like`. With changed
/// settings a run may have others beside the optimizer: they begin anew.
OptimizerState of_this_run(OptimizerState saved, const OptimizerState& like);

/// On how many ranks what PowerSGD has of each rank was saved; nothing if
/// `resumed` does not say it.
std::optional<int64_t> saved_ranks(const Resume& resumed);

/// A checksum of the bytes of all these.
std::string digest_of(const NamedTensors& parameters,
                      const OptimizerState& state);

}  // namespace lockstep::train
