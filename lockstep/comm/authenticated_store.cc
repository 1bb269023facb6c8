#include "lockstep/comm/authenticated_store.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

using Bytes = std::vector<uint8_t>;

std::string to_text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

[[noreturn]] void throw_timeout(const std::vector<std::string>& keys,
                                std::chrono::milliseconds timeout) {
  C10_THROW_ERROR(
      DistStoreError,
      fmt::format("[comm] timed out waiting for '{}' in the store; expected it "
                  "within {} s",
                  fmt::join(keys, "', '"),
                  static_cast<double>(timeout.count()) / 1e3));
}

}  // namespace

AuthenticatedStore::AuthenticatedStore(std::shared_ptr<store::Client> client,
                                       std::chrono::milliseconds timeout,
                                       std::shared_ptr<store::Server> server)
    : c10d::Store(timeout),
      server_(std::move(server)),
      client_(std::move(client)) {}

c10::intrusive_ptr<c10d::Store> AuthenticatedStore::clone() {
  // The client may be used by several threads.
  return c10::make_intrusive<AuthenticatedStore>(client_, getTimeout(),
                                                 server_);
}

void AuthenticatedStore::set(const std::string& key, const Bytes& value) {
  client_->set(key, to_text(value));
}

Bytes AuthenticatedStore::compareSet(const std::string& key,
                                     const Bytes& currentValue,
                                     const Bytes& newValue) {
  return to_bytes(
      client_->compare_set(key, to_text(currentValue), to_text(newValue)));
}

Bytes AuthenticatedStore::get(const std::string& key) {
  if (const auto value = client_->get(key, getTimeout())) {
    return to_bytes(*value);
  }
  throw_timeout({key}, getTimeout());
}

int64_t AuthenticatedStore::add(const std::string& key, int64_t value) {
  return client_->add(key, value);
}

bool AuthenticatedStore::deleteKey(const std::string& key) {
  return client_->erase(key);
}

bool AuthenticatedStore::check(const std::vector<std::string>& keys) {
  return client_->has(keys);
}

int64_t AuthenticatedStore::getNumKeys() { return client_->count(); }

void AuthenticatedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

void AuthenticatedStore::wait(const std::vector<std::string>& keys,
                              const std::chrono::milliseconds& timeout) {
  if (!client_->wait(keys, timeout)) throw_timeout(keys, timeout);
}

}  // namespace lockstep
