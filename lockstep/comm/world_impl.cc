#include "lockstep/comm/world_impl.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/backends/backends.h"
#include "lockstep/comm/backends/gloo_collectives.h"
#include "lockstep/comm/backends/shm_collectives.h"
#include "lockstep/comm/c10d/c10d_backend.h"
#include "lockstep/comm/c10d/c10d_communicator.h"
#include "lockstep/comm/queue/collective_queue.h"
#include "lockstep/comm/single_rank.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/tcp/listener.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPiece{500};

double seconds_of(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

c10::intrusive_ptr<c10d::Backend> connect_c10d_gloo(
    const BackendOptions& options) {
  try {
    return make_gloo_backend(options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what =
        fmt::format("rank {} of {} can't connect to the others", options.rank,
                    options.size);
    // Gloo reports the cause only as text.
    for (const int resource : {EMFILE, ENFILE, ENOMEM}) {
      if (text_of(error).find(std::strerror(resource)) != std::string::npos) {
        throw OutOfResources("comm", what, resource);
      }
    }
    throw CommError(
        {.code = ErrorCode::kRanksNotConnected,
         .what = what,
         .got = first_line(text_of(error)),
         .fix = "look at their own output, and at GLOO_SOCKET_IFNAME"});
  }
}

/// Returns a text that is the same for two ranks if they are on one host and
/// can map each other's memory. It names the running kernel, the namespaces of
/// processes and of the network, and the user. The host's name and address are
/// not enough, because containers share them, or have none.
std::string place_of_this_process() {
  return fmt::format("{} {} {} user {}", boot_id(), namespace_id("pid"),
                     namespace_id("net"), ::geteuid());
}

/// A world's view of a store that may have other users. It has its own key
/// prefix and timeout, so the timeout of that store is not changed.
class WorldStore : public c10d::PrefixStore {
 public:
  WorldStore(c10::intrusive_ptr<c10d::Store> store,
             std::chrono::milliseconds timeout)
      : PrefixStore("world", std::move(store)) {
    timeout_ = timeout;
  }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<WorldStore>(store_->clone(), timeout_);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    // The underlying store would wait with its own timeout. Wait here first, so
    // that the key exists when the store is asked.
    wait({key}, timeout_);
    return PrefixStore::get(key);
  }
  using PrefixStore::wait;
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override {
    return timeout_;
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    timeout_ = timeout;
  }
};

}  // namespace

World::Impl::Impl()
    : main{.calls = CallFactory(0, 1, std::nullopt),
           .communicator = std::make_shared<SingleRank>()} {}

World::Impl::Impl(c10::intrusive_ptr<c10d::Store> the_store, int the_rank,
                  int the_size, std::string master_addr,
                  const WorldOptions& options)
    : rank(the_rank),
      size(the_size),
      timeout(options.timeout),
      store(c10::make_intrusive<WorldStore>(std::move(the_store),
                                            options.timeout)),
      main{.calls = CallFactory(the_rank, the_size, options.device_type),
           .communicator = nullptr},
      master_addr_(std::move(master_addr)),
      options_(options) {
  const auto places = all_gather_text(place_of_this_process());
  local_size = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (places[static_cast<size_t>(peer)] !=
        places[static_cast<size_t>(rank)]) {
      continue;
    }
    if (peer == rank) local_rank = local_size;
    ++local_size;
  }
  connect(choose_backend(places));
}

std::string World::Impl::choose_backend(
    const std::vector<std::string>& places) const {
  std::string name = options_.backend;
  const bool is_one_host = local_size == size;
  if (name == "auto") {
    name = options_.device_type == torch::kCUDA ? "nccl"
           : is_one_host                        ? "shm"
                                                : "gloo";
  }
  if (name != "shm" && name != "gloo" && name != "nccl") {
    throw InvalidArgument("comm", {.code = ErrorCode::kUnknownName,
                                   .what = "no such backend",
                                   .expected = "auto, shm, gloo or nccl",
                                   .got = name});
  }
  if ((name == "nccl") != (options_.device_type == torch::kCUDA)) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBackendUnsuitable,
         .what = fmt::format("backend {} does not work on {} tensors", name,
                             c10::DeviceTypeName(options_.device_type, true)),
         .fix = "use nccl for cuda, shm or gloo for cpu"});
  }
  if (name == "shm" && !is_one_host) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBackendUnsuitable,
         .what = "backend shm needs all ranks on one host",
         .expected = "one kernel, process and network namespace, and user",
         .got = fmt::format("ranks at: {}", fmt::join(places, "; ")),
         .fix = "use --backend gloo, or auto"});
  }
  return name;
}

void World::Impl::connect(const std::string& backend_name) {
  const BackendOptions options{.store = store,
                               .rank = rank,
                               .size = size,
                               .timeout = timeout,
                               .master_addr = local_size == size
                                                  ? store::loopback_host()
                                                  : master_addr_};
  if (backend_name == "nccl") {
    avoid_bad_links();
    BackendOptions of_host = options;
    of_host.store = c10::make_intrusive<c10d::PrefixStore>("host", store);
    host = connect_host(local_size == size ? "shm" : "gloo", of_host);
    backend = make_nccl_backend(options);
    main.communicator = std::make_shared<C10dCommunicator>(
        backend, options_.device_type, timeout);
    return;
  }
  main = connect_host(backend_name, options);
  const auto queue =
      std::static_pointer_cast<CollectiveQueue>(main.communicator);
  backend = c10::make_intrusive<C10dBackend>(queue, rank, size);
}

World::Impl::Line World::Impl::connect_host(
    const std::string& backend_name, const BackendOptions& options) const {
  std::unique_ptr<Collectives> collectives;
  if (backend_name == "shm") {
    collectives =
        std::make_unique<ShmCollectives>(options.store, rank, size, timeout);
  } else {
    collectives = connect_gloo(options);
  }
  return {.calls = CallFactory(rank, size, torch::kCPU),
          .communicator = std::make_shared<CollectiveQueue>(
              std::move(collectives), rank, size, timeout)};
}

// NCCL makes its own copies, peer to peer if the driver says that it can.
void World::Impl::avoid_bad_links() const {
  if (size == 1) return;
  std::string found;
  if (local_rank == 0 && local_size > 1) {
    const std::vector<Device> gpus = devices("cuda");
    guard_links(gpus, options_.bad_links);
    for (const Link& link : links_between(gpus)) {
      if (chosen_path(link) == CopyPath::kStaged) found = "bad";
    }
  }
  const auto all = all_gather_text(found);
  if (std::find(all.begin(), all.end(), "bad") != all.end()) {
    ::setenv("NCCL_P2P_DISABLE", "1", /*overwrite=*/1);
  }
}

std::unique_ptr<Collectives> World::Impl::connect_gloo(
    const BackendOptions& options) const {
  const auto names = all_gather_text(
      fmt::format("rank {} (host {}, pid {})", rank, host_name(), ::getpid()));
  auto gloo = connect_c10d_gloo(options);
  auto collectives = std::make_unique<GlooCollectives>(
      std::move(gloo), connect_mesh(options.master_addr, names), names);
  // If a rank ended while others are still connecting, their connections would
  // fail.
  all_gather_text("connected");
  return collectives;
}

std::unique_ptr<tcp::Mesh> World::Impl::connect_mesh(
    const std::string& master_addr,
    const std::vector<std::string>& names) const {
  tcp::Listener listener(local_address_towards(master_addr),
                         env("GLOO_SOCKET_IFNAME").value_or(""));
  const auto announcements = all_gather_text(listener.announcement());
  return std::make_unique<tcp::Mesh>(
      rank,
      listener.connect(rank, announcements,
                       std::chrono::steady_clock::now() + timeout,
                       [] { return control::is_attempt_over(); }),
      names,
      local_size == size ? tcp::Mesh::Hosts::kOne : tcp::Mesh::Hosts::kSeveral);
}

std::string World::Impl::get(const std::string& key) const {
  // Waits in short pieces and checks in between, because the rank that would
  // set the key may have been lost, which the launcher's agent knows.
  const std::chrono::milliseconds piece =
      control::control_block() != nullptr ? std::min(timeout, kPiece) : timeout;
  const Stopwatch waited;
  for (;;) {
    const double before_s = waited.seconds();
    try {
      store->wait({key}, piece);
      return store->get_to_str(key);
    } catch (const OutOfResources&) {
      throw;
    } catch (const std::exception& error) {
      const double now_s = waited.seconds();
      const bool is_late = now_s >= seconds_of(timeout);
      const bool is_broken = now_s - before_s < seconds_of(piece) / 2;
      if (!is_late && !is_broken && !control::is_attempt_over()) continue;
      throw CommError(
          {.code = ErrorCode::kStoreTimeout,
           .what = fmt::format("rank {} of {} did not find '{}' in the store{}",
                               rank, size, key, is_late ? ": timed out" : ""),
           .expected = fmt::format("it within {} s", seconds_of(timeout)),
           .got = first_line(text_of(error)),
           .fix = "look at that rank's own output; start all ranks; if it only "
                  "needs longer, raise the timeout"});
    }
  }
}

const World::Impl::Line& World::Impl::line_of(const at::Tensor& tensor) const {
  return host && tensor.defined() && tensor.is_cpu() ? *host : main;
}

const World::Impl::Line& World::Impl::line_of(
    const std::vector<at::Tensor>& tensors) const {
  return tensors.empty() ? main : line_of(tensors[0]);
}

Work World::Impl::Line::begin(CollectiveCall call) const {
  std::vector<at::Tensor> outputs = call.outputs;
  return Work(communicator->begin(std::move(call)), std::move(outputs));
}

std::vector<std::string> World::Impl::all_gather_text(
    const std::string& text) const {
  if (size == 1) return {text};
  const int number = texts_++;
  store->set(fmt::format("text {} of rank {}", number, rank), text);
  std::vector<std::string> texts;
  for (int peer = 0; peer < size; ++peer) {
    texts.push_back(get(fmt::format("text {} of rank {}", number, peer)));
  }
  return texts;
}

std::optional<World> World::Impl::new_group(
    const std::vector<int>& ranks) const {
  const std::set<int> unique(ranks.begin(), ranks.end());
  if (ranks.empty() || unique.size() != ranks.size() || *unique.begin() < 0 ||
      *unique.rbegin() >= size) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBadRank,
         .what = "no group can be made of these ranks",
         .expected = fmt::format("some of 0 to {}, each once", size - 1),
         .got = fmt::format("{}", fmt::join(ranks, ", "))});
  }
  const int number = groups_++;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  if (ranks.size() == 1) return World();
  // The ranks are part of the name, so that ranks which ask for different
  // groups never meet.
  auto prefix = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group {} of {}", number, fmt::join(ranks, "-")), store);
  WorldOptions options = options_;
  return World(std::make_shared<const Impl>(
      std::move(prefix), static_cast<int>(found - ranks.begin()),
      static_cast<int>(ranks.size()), master_addr_, options));
}

}  // namespace lockstep
