#include "lockstep/train/state/state_entries.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::train {

using torch::Tensor;

bool is_beside(const std::string& name) {
  return name.starts_with(kCallback) || name.starts_with(kLossScaler) ||
         name.starts_with(kSpikes) || name.starts_with(kPowerSgd);
}

std::string prefix_of_rank(int rank) { return fmt::format("rank.{}.", rank); }

OptimizerState of_all_ranks(const World& world, const OptimizerState& own) {
  OptimizerState all;
  for (const auto& [name, tensor] : own) {
    const auto of_ranks = world.all_gather(tensor.contiguous());
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      all[prefix_of_rank(static_cast<int>(rank)) + name] = of_ranks[rank];
    }
  }
  return all;
}

OptimizerState part_of(const OptimizerState& state, const std::string& prefix) {
  OptimizerState part;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = tensor;
  }
  return part;
}

OptimizerState of_this_run(OptimizerState saved, const OptimizerState& like) {
  std::erase_if(saved, [&](const auto& entry) {
    return is_beside(entry.first) && !like.contains(entry.first);
  });
  for (const auto& [name, tensor] : like) {
    if (is_beside(name)) saved.try_emplace(name, tensor);
  }
  return saved;
}

std::optional<int64_t> saved_ranks(const Resume& resumed) {
  constexpr int64_t kMost = 1 << 16;
  if (!resumed.info.run) return std::nullopt;
  const Settings& settings = resumed.info.run->settings;
  const auto found = settings.find(kPowerSgdRanks);
  if (found == settings.end()) return std::nullopt;
  int64_t ranks = 0;
  const std::string& text = found->second;
  std::from_chars(text.data(), text.data() + text.size(), ranks);
  return std::clamp<int64_t>(ranks, 0, kMost);
}

std::string digest_of(const NamedTensors& parameters,
                      const OptimizerState& state) {
  Checksum sum;
  for (const auto& [name, tensor] : parameters) add_elements(sum, tensor);
  for (const auto& [name, tensor] : state) add_elements(sum, tensor);
  return sum.hex();
}

}  // namespace lockstep::train
