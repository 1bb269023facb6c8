#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/store/client.h"
#include "lockstep/store/server.h"

namespace lockstep {

/// A job's store as a c10d::Store: what c10d::TCPStore is, for those only who
/// know the job's secret. Waits throw c10::DistStoreError at the timeout, all
/// else CommError.
class AuthenticatedStore : public c10d::Store {
 public:
  /// With the `server`, if it is this process that serves the store: it serves
  /// as long as this object, or a clone, is there.
  AuthenticatedStore(std::shared_ptr<store::Client> client,
                     std::chrono::milliseconds timeout,
                     std::shared_ptr<store::Server> server = nullptr);

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(
      const std::string& key, const std::vector<uint8_t>& currentValue,
      const std::vector<uint8_t>& newValue) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  // In this order: the client goes first.
  std::shared_ptr<store::Server> server_;
  std::shared_ptr<store::Client> client_;
};

}  // namespace lockstep
