#include "lockstep/comm/world_store.h"

#include <utility>

namespace lockstep {

WorldStore::WorldStore(c10::intrusive_ptr<c10d::Store> store,
                       std::chrono::milliseconds timeout)
    : PrefixStore("world", std::move(store)) {
  timeout_ = timeout;
}

c10::intrusive_ptr<c10d::Store> WorldStore::clone() {
  return c10::make_intrusive<WorldStore>(store_->clone(), timeout_);
}

std::vector<uint8_t> WorldStore::get(const std::string& key) {
  // The store below waits for its own timeout: here the key is there.
  wait({key}, timeout_);
  return PrefixStore::get(key);
}

void WorldStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

const std::chrono::milliseconds& WorldStore::getTimeout() const noexcept {
  return timeout_;
}

void WorldStore::setTimeout(const std::chrono::milliseconds& timeout) {
  timeout_ = timeout;
}

}  // namespace lockstep
