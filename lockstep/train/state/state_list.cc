#include "lockstep/train/state/state_list.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/tensor_layout.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {
namespace {

// Returns true if an entry belongs to a part that a checkpoint may lack, or
// have in addition, because settings have changed.
bool is_optional(std::string_view name) {
  constexpr std::string_view kOptional[] = {
      StateList::kCallback, StateList::kLossScaler, StateList::kSpikes,
      StateList::kPowerSgd};
  return std::any_of(
      std::begin(kOptional), std::end(kOptional),
      [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string prefix_of_rank(int64_t rank) {
  return fmt::format("rank.{}.", rank);
}

// Adds the entries of `state` to `all`, with `prefix`.
void insert(const std::string& prefix, const OptimizerState& state,
            OptimizerState& all) {
  for (const auto& [name, tensor] : state) all[prefix + name] = tensor;
}

// Returns the entries whose names begin with `prefix`, without the prefix.
OptimizerState entries_of(const OptimizerState& state,
                          const std::string& prefix) {
  OptimizerState entries;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) entries[name.substr(prefix.size())] = tensor;
  }
  return entries;
}

// Returns the states of all ranks, each with its prefix. Collective.
OptimizerState gather_state(const ProcessGroup& world,
                            const OptimizerState& own) {
  OptimizerState all;
  for (const auto& [name, tensor] : own) {
    const auto per_rank = world.all_gather(tensor.contiguous()).result();
    for (size_t rank = 0; rank < per_rank.size(); ++rank) {
      all[prefix_of_rank(static_cast<int64_t>(rank)) + name] = per_rank[rank];
    }
  }
  return all;
}

bool is_of_callback(std::string_view name) {
  return name.starts_with(StateList::kCallback);
}

// Returns `saved` with the entries that this run has, which are those of
// `like`. All entries of callbacks are kept, because a callback may make its
// state in its first step.
OptimizerState for_this_run(OptimizerState saved, const OptimizerState& like) {
  std::erase_if(saved, [&](const auto& entry) {
    return is_optional(entry.first) && !is_of_callback(entry.first) &&
           !like.contains(entry.first);
  });
  for (const auto& [name, tensor] : like) {
    if (is_optional(name)) saved.try_emplace(name, tensor);
  }
  return saved;
}

// Returns the number of ranks whose state of PowerSGD was saved; nothing if
// `resumed` does not say.
std::optional<int64_t> saved_ranks(const Resume& resumed) {
  constexpr int64_t kMax = 1 << 16;
  if (!resumed.info.run) return std::nullopt;
  return saved_number(resumed.info.run->settings, kPowerSgdRanks, kMax);
}

}  // namespace

void StateList::add(std::string prefix, Stateful& part, StateOf of) {
  parts_.push_back({.prefix = std::move(prefix), .part = &part, .of = of});
}

OptimizerState StateList::state() const {
  OptimizerState all;
  for (const auto& [prefix, part, of] : parts_) {
    const OptimizerState own = part->state();
    insert(prefix, of == StateOf::kRank ? gather_state(world_, own) : own, all);
  }
  return all;
}

OptimizerState StateList::state_of_ranks(int64_t ranks) const {
  OptimizerState all = state();
  if (ranks == world_.size()) return all;
  for (const Part& part : parts_) {
    // If it is not optional, the run has the ranks that were saved.
    if (part.of != StateOf::kRank || !is_optional(part.prefix)) continue;
    std::erase_if(all, [&](const auto& entry) {
      return entry.first.starts_with(part.prefix);
    });
    OptimizerState own = part.part->state();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (auto& [name, tensor] : own) tensor = tensor.clone();
      insert(part.prefix + prefix_of_rank(rank), own, all);
    }
  }
  return all;
}

OptimizerState StateList::read(const Resume& resumed, int64_t ranks) const {
  OptimizerState entries = state_of_ranks(ranks);
  if (resumed.state) {
    entries = for_this_run(resumed.state->optimizer_state(), entries);
  }
  if (world_.size() == 1) return entries;
  // The root has read its state into host memory.
  for (auto& [name, tensor] : entries) tensor = tensor.cpu().contiguous();
  const std::string layouts = world_.all_gather_text(
      world_.rank() == resumed.root
          ? format_layouts(layouts_of({entries.begin(), entries.end()}))
          : "")[static_cast<size_t>(resumed.root)];
  OptimizerState read;
  for (const TensorLayout& layout : parse_layouts(layouts)) {
    torch::Tensor message =
        world_.rank() == resumed.root ? entries.at(layout.name) : layout.make();
    world_.broadcast(message, resumed.root);
    read[layout.name] = message;
  }
  return read;
}

void StateList::warn_of_dropped(const OptimizerState& entries) const {
  if (world_.rank() != 0) return;
  OptimizerState kept;
  for (const Part& part : parts_) {
    if (is_of_callback(part.prefix)) {
      insert(part.prefix, part.part->state(), kept);
    }
  }
  std::vector<std::string> dropped;
  for (const auto& [name, tensor] : entries) {
    if (is_of_callback(name) && !kept.contains(name)) dropped.push_back(name);
  }
  if (dropped.empty()) return;
  const size_t count = dropped.size();
  constexpr size_t kMaxNamed = 3;
  dropped.resize(std::min(count, kMaxNamed));
  log_warning(
      "train",
      fmt::format("{} of the state of callbacks in the checkpoint {} not "
                  "loaded: {}{}; give the run the callbacks that it had, in "
                  "the same order, and let their load_state() take what "
                  "state() returned",
                  counted(static_cast<int64_t>(count), "tensor"),
                  count == 1 ? "was" : "were", fmt::join(dropped, ", "),
                  count > kMaxNamed ? ", ..." : ""));
}

void StateList::load_part(const Part& part, const OptimizerState& entries,
                          int64_t ranks) const {
  const auto& [prefix, stateful, of] = part;
  if (of == StateOf::kRank) {
    // With another number of ranks, the parts of gradients that PowerSGD has
    // not sent yet are lost.
    if (is_optional(prefix) && ranks != world_.size()) return;
    stateful->load_state(
        entries_of(entries, prefix + prefix_of_rank(world_.rank())));
  } else if (prefix == kOptimizer) {
    OptimizerState own = entries;
    std::erase_if(own,
                  [](const auto& entry) { return is_optional(entry.first); });
    stateful->load_state(own);
  } else {
    OptimizerState own = entries_of(entries, prefix);
    // A callback may keep them, and those of a snapshot are overwritten.
    if (is_of_callback(prefix)) {
      for (auto& [name, tensor] : own) tensor = tensor.clone();
    }
    stateful->load_state(own);
  }
}

void StateList::load(const Resume& resumed, LoadCallbacks callbacks) {
  const int64_t ranks = saved_ranks(resumed).value_or(world_.size());
  const OptimizerState entries = read(resumed, ranks);
  for (const Part& part : parts_) {
    if (is_of_callback(part.prefix) && callbacks == LoadCallbacks::kNo) {
      continue;
    }
    load_part(part, entries, ranks);
  }
  if (callbacks == LoadCallbacks::kYes) warn_of_dropped(entries);
}

}  // namespace lockstep::training
