#include "lockstep/launch/job_store.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/first_line.h"

namespace lockstep::launch {
namespace {

constexpr int kTimeoutS = 5;
constexpr size_t kMaxBytes = 1 << 20;

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string to_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

c10d::TCPStoreOptions options_for(const Endpoint& endpoint) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(endpoint.port);
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(kTimeoutS);
  return options;
}

// While it lives, LibTorch logs nothing: what goes wrong with a store becomes
// an exception of ours, in one line instead of a page with a stack.
class QuietTorch {
 public:
  QuietTorch() : former_(std::exchange(FLAGS_caffe2_log_level, kFatal)) {}
  ~QuietTorch() { FLAGS_caffe2_log_level = former_; }
  QuietTorch(const QuietTorch&) = delete;
  QuietTorch& operator=(const QuietTorch&) = delete;

 private:
  static constexpr int kFatal = 3;
  int former_;
};

}  // namespace

struct JobStore::Connection {
  Connection(const Endpoint& endpoint, const c10d::TCPStoreOptions& options)
      : store(c10::make_intrusive<c10d::TCPStore>(endpoint.host, options)) {
    // Its own timeout is for connect() and wait() only.
    limit_waits(endpoint.port, kTimeoutS);
  }

  // Runs `act` on the store; what c10d throws becomes ours.
  template <class Act>
  auto use(const Endpoint& endpoint, Act act) {
    const QuietTorch quiet;
    try {
      return act(*store);
    } catch (const std::exception& error) {
      throw LaunchError({.what = "lost the job's store at " + endpoint.text(),
                         .got = first_line(error.what()),
                         .fix = "see what the agent that serves it says"});
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store;
};

JobStore::JobStore(const Endpoint& endpoint, FileDescriptor listener)
    : endpoint_(endpoint) {
  auto options = options_for(endpoint);
  options.isServer = true;
  // Without a socket of ours, the store would listen on all interfaces.
  options.masterListenFd = listener.release();
  const QuietTorch quiet;
  try {
    connection_ = std::make_unique<Connection>(endpoint, options);
  } catch (const std::exception& error) {
    throw LaunchError(
        {.what = "can't serve the job's store at " + endpoint.text(),
         .got = first_line(error.what())});
  }
}

JobStore::JobStore(const Endpoint& endpoint) : endpoint_(endpoint) {
  const QuietTorch quiet;
  try {
    connection_ = std::make_unique<Connection>(endpoint, options_for(endpoint));
  } catch (const std::exception& error) {
    throw LaunchError(
        {.what = "what listens at " + endpoint.text() + " is no job's store",
         .expected = "the agent of node 0",
         .got = first_line(error.what()),
         .fix = "check the address and the port of the job"});
  }
}

JobStore::~JobStore() = default;
JobStore::JobStore(JobStore&&) noexcept = default;

void JobStore::set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

void JobStore::set(const std::string& key, const std::string& value) {
  connection_->use(endpoint_, [&](c10d::TCPStore& store) {
    store.set(prefix_ + key, to_bytes(value));
  });
}

std::optional<std::string> JobStore::get(const std::string& key) {
  return connection_->use(
      endpoint_, [&](c10d::TCPStore& store) -> std::optional<std::string> {
        if (!store.check({prefix_ + key})) return std::nullopt;
        const auto bytes = store.get(prefix_ + key);
        if (bytes.size() > kMaxBytes) return std::nullopt;
        return to_text(bytes);
      });
}

int64_t JobStore::add(const std::string& key, int64_t value) {
  return connection_->use(endpoint_, [&](c10d::TCPStore& store) {
    return store.add(prefix_ + key, value);
  });
}

std::string JobStore::claim(const std::string& key, const std::string& value) {
  return connection_->use(endpoint_, [&](c10d::TCPStore& store) {
    return to_text(store.compareSet(prefix_ + key, {}, to_bytes(value)));
  });
}

}  // namespace lockstep::launch
