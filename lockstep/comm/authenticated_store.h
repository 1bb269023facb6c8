#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/store/client.h"
#include "lockstep/store/server.h"

namespace lockstep {

/// Adapts a job's store to c10d::Store. It works like c10d::TCPStore, but
/// serves only clients that know the job's secret. A wait that times out throws
/// c10::DistStoreError. All other errors are CommErrors.
class AuthenticatedStore : public c10d::Store {
 public:
  /// If this process serves the store, pass the `server`. It runs as long as
  /// this object or a clone of it exists.
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
  // In this order, because the client must be destroyed first.
  std::shared_ptr<store::Server> server_;
  std::shared_ptr<store::Client> client_;
};

}  // namespace lockstep
