#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace lockstep {

/// A world's view of a store that others may use, too: with keys and a timeout
/// of its own, so that the timeout of that store stays as it is.
class WorldStore : public c10d::PrefixStore {
 public:
  WorldStore(c10::intrusive_ptr<c10d::Store> store,
             std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  std::vector<uint8_t> get(const std::string& key) override;
  using PrefixStore::wait;
  void wait(const std::vector<std::string>& keys) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
};

}  // namespace lockstep
