#include "lockstep/launch/rendezvous/job_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// Time of one attempt to connect at the start. The rendezvous makes many.
constexpr milliseconds kConnectTime{2000};
// Interval at which get_unless() checks whether the agent that would set the
// key is gone.
constexpr double kGoneEveryS = 0.02;
constexpr size_t kMaxBytes = 1 << 20;

milliseconds from_seconds(double seconds) {
  return milliseconds(static_cast<int64_t>(seconds * 1000));
}

store::ClientOptions client_options(const JobStoreOptions& options,
                                    const Endpoint& address) {
  store::ClientOptions result;
  result.host = address.host;
  result.port = address.port;
  result.who = {.role = store::Role::kAgent,
                .run_id = options.run_id,
                .name = options.name,
                .incarnation = options.incarnation};
  result.key = options.secret.key_of(result.who);
  result.connect_time = kConnectTime;
  result.answer_time = from_seconds(options.keep_alive_s);
  return result;
}

std::unique_ptr<store::Server> serve(const JobStoreOptions& options,
                                     std::vector<FileDescriptor> listeners) {
  store::ServerOptions server;
  server.secret = options.secret;
  server.run_id = options.run_id;
  server.reconnect_time = from_seconds(options.keep_alive_s);
  server.end_time = std::min(server.end_time, server.reconnect_time);
  return std::make_unique<store::Server>(server, std::move(listeners));
}

}  // namespace

JobStore::JobStore(const JobStoreOptions& options, const Endpoint& endpoint,
                   std::vector<FileDescriptor> listeners)
    : options_(options),
      endpoint_(endpoint),
      // The endpoint's name may be one that only other hosts can resolve.
      address_{store::SocketAddress::from_socket(listeners.at(0).get()).host(),
               endpoint.port},
      server_(serve(options, std::move(listeners))),
      client_(
          std::make_unique<store::Client>(client_options(options, address_))),
      is_lost_(std::make_unique<std::atomic<bool>>(false)) {}

JobStore::JobStore(const JobStoreOptions& options, const Endpoint& endpoint)
    : options_(options),
      endpoint_(endpoint),
      address_(endpoint),
      is_lost_(std::make_unique<std::atomic<bool>>(false)) {
  try {
    client_ =
        std::make_unique<store::Client>(client_options(options, address_));
  } catch (const store::Unreachable&) {
    throw;
  } catch (const store::Refused&) {
    throw;
  } catch (const CommError& error) {
    throw LaunchError({.code = ErrorCode::kStoreRefused,
                       .what = "what listens at " + endpoint.text() +
                               " is not the store of "
                               "this job",
                       .expected = "the agent of node 0, with the job's secret",
                       .got = text_of(error),
                       .fix = "check the address and the port of the job"});
  }
}

JobStore::~JobStore() = default;
JobStore::JobStore(JobStore&&) noexcept = default;

void JobStore::set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

template <class Act>
auto JobStore::use(Act act) {
  const auto lost = [&](const std::string& why) {
    return CutOff(
        {.code = ErrorCode::kStoreUnreachable,
         .what = "lost the job's store at " + endpoint_.text(),
         .got = why,
         .fix = "see the messages of the agent that serves it; --rdzv-conf "
                "keep_alive_interval and keep_alive_max_attempt set for how "
                "long agents try to reach it"});
  };
  if (*is_lost_) throw lost("it was lost before");
  try {
    return act(*client_);
  } catch (const store::RequestRefused& error) {
    throw LaunchError(
        {.code = ErrorCode::kStoreRefused,
         .what = "refused by the job's store at " + endpoint_.text(),
         .got = text_of(error)});
  } catch (const CommError& error) {
    *is_lost_ = true;
    throw lost(text_of(error));
  }
}

void JobStore::set(const std::string& key, const std::string& value) {
  use([&](store::Client& client) { client.set(full(key), value); });
}

std::optional<std::string> JobStore::get(const std::string& key,
                                         double wait_s) {
  auto value = use([&](store::Client& client) {
    return client.get(full(key), from_seconds(wait_s));
  });
  if (value && value->size() > kMaxBytes) value.reset();
  return value;
}

std::optional<std::string> JobStore::get_unless(const std::string& gone,
                                                const std::string& key,
                                                double wait_s) {
  const Stopwatch watch;
  for (;;) {
    // Checks `gone` first, so that a key that was set before the end is found.
    const bool is_gone = has_all({gone});
    const double left_s = is_gone ? 0 : wait_s - watch.seconds();
    if (has_all({key}, std::clamp(left_s, 0.0, kGoneEveryS))) return get(key);
    if (left_s <= 0) return std::nullopt;
  }
}

int64_t JobStore::add(const std::string& key, int64_t value) {
  return use(
      [&](store::Client& client) { return client.add(full(key), value); });
}

std::string JobStore::claim(const std::string& key, const std::string& value) {
  return use([&](store::Client& client) {
    return client.compare_set(full(key), "", value);
  });
}

bool JobStore::has_all(std::vector<std::string> keys, double wait_s) {
  for (std::string& key : keys) key = full(key);
  return use([&](store::Client& client) {
    return wait_s > 0 ? client.wait(keys, from_seconds(wait_s))
                      : client.has(keys);
  });
}

void JobStore::set_last_will(const std::string& key) {
  use([&](store::Client& client) { client.set_last_will(full(key), "1"); });
}

void JobStore::begin_round(int round, int world_size) {
  use([&](store::Client& client) { client.begin_round(round, world_size); });
}

store::Key JobStore::worker_key(int rank, int round) const {
  return options_.secret.key_of({.role = store::Role::kWorker,
                                 .run_id = options_.run_id,
                                 .rank = rank,
                                 .round = round});
}

}  // namespace lockstep::launch
