#include "lockstep/comm/world_impl.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/first_line.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/comm/backends.h"
#include "lockstep/comm/gloo_collectives.h"
#include "lockstep/comm/network.h"
#include "lockstep/comm/shm_collectives.h"
#include "lockstep/comm/world_store.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/tcp/listener.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPiece{500};

double seconds_of(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

std::string first_line_of_file(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string name_space(const char* kind) {
  std::array<char, 64> name{};
  const std::string path = fmt::format("/proc/self/ns/{}", kind);
  const ssize_t size = ::readlink(path.c_str(), name.data(), name.size() - 1);
  return size > 0 ? name.data() : fmt::format("{}:?", kind);
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const BackendOptions& options) {
  try {
    return make_gloo_backend(options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what =
        fmt::format("rank {} of {} can't connect to the others", options.rank,
                    options.size);
    // Gloo tells the cause in words alone.
    for (const int resource : {EMFILE, ENFILE, ENOMEM}) {
      if (std::strstr(error.what(), std::strerror(resource)) != nullptr) {
        throw OutOfResources("comm", what, resource);
      }
    }
    throw CommError(
        {.code = ErrorCode::kRanksNotConnected,
         .what = what,
         .got = first_line(error.what()),
         .fix = "look at their own output, and at GLOO_SOCKET_IFNAME"});
  }
}

/// What two ranks have in common if they are on one host and can map each
/// other's memory: the running kernel, the process numbers, the network and the
/// user. Not the host's name or address: containers share those, or lack them.
std::string place_of_this_process() {
  return fmt::format("{} {} {} user {}",
                     first_line_of_file("/proc/sys/kernel/random/boot_id"),
                     name_space("pid"), name_space("net"), ::geteuid());
}

}  // namespace

World::Impl::Impl(c10::intrusive_ptr<c10d::Store> the_store, int the_rank,
                  int the_size, std::string master_addr,
                  const WorldOptions& options)
    : rank(the_rank),
      size(the_size),
      timeout(options.timeout),
      store(c10::make_intrusive<WorldStore>(std::move(the_store),
                                            options.timeout)),
      master_addr_(std::move(master_addr)),
      options_(options) {
  const auto places = all_gather_text(place_of_this_process());
  local_size = 0;
  for (int other = 0; other < size; ++other) {
    if (places[static_cast<size_t>(other)] !=
        places[static_cast<size_t>(rank)]) {
      continue;
    }
    if (other == rank) local_rank = local_size;
    ++local_size;
  }
  choose_backend(places);
}

void World::Impl::choose_backend(const std::vector<std::string>& places) {
  std::string name = options_.backend;
  const bool is_one_host = std::set(places.begin(), places.end()).size() == 1;
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
  BackendOptions options{
      .store = store,
      .rank = rank,
      .size = size,
      .timeout = timeout,
      .master_addr = is_one_host ? "127.0.0.1" : master_addr_};
  if (name == "nccl") {
    backend = make_nccl_backend(options);
    return;
  }
  std::unique_ptr<Collectives> collectives;
  if (name == "shm") {
    collectives = std::make_unique<ShmCollectives>(store, rank, size, timeout);
  } else {
    const auto names = all_gather_text(fmt::format(
        "rank {} (host {}, pid {})", rank, host_name(), ::getpid()));
    collectives = std::make_unique<GlooCollectives>(connect_gloo(options),
                                                    connect_mesh(names), names);
    // A rank that ends while others still connect would make those fail.
    all_gather_text("connected");
  }
  auto made = c10::make_intrusive<QueuedBackend>(std::move(collectives), rank,
                                                 size, timeout);
  queued = made.get();
  backend = std::move(made);
}

std::unique_ptr<tcp::Mesh> World::Impl::connect_mesh(
    const std::vector<std::string>& names) const {
  const bool is_one_host = local_size == size;
  tcp::Listener listener(
      is_one_host ? "127.0.0.1" : local_address_towards(master_addr_),
      env("GLOO_SOCKET_IFNAME").value_or(""));
  const auto announcements = all_gather_text(listener.announcement());
  return std::make_unique<tcp::Mesh>(
      rank,
      listener.connect(rank, announcements,
                       std::chrono::steady_clock::now() + timeout,
                       [] { return control::is_attempt_over(); }),
      names);
}

std::string World::Impl::get(const std::string& key) const {
  // In pieces: the rank that would set it may have been lost, which the
  // launcher's agent knows.
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
           .what = fmt::format("rank {} of {} waited in vain for '{}' in the "
                               "store{}",
                               rank, size, key, is_late ? ": timed out" : ""),
           .expected = fmt::format("it within {} s", seconds_of(timeout)),
           .got = first_line(error.what()),
           .fix = "look at that rank's own output; start all ranks; if it only "
                  "needs longer, raise the timeout"});
    }
  }
}

c10d::Backend& World::Impl::others() const {
  if (backend) return *backend;
  throw InvalidArgument("comm",
                        {.code = ErrorCode::kBadRank,
                         .what = "there is no rank to send to or receive from",
                         .expected = "a world of at least 2"});
}

std::vector<std::string> World::Impl::all_gather_text(
    const std::string& text) const {
  if (size == 1) return {text};
  const int number = texts_++;
  store->set(fmt::format("text {} of rank {}", number, rank), text);
  std::vector<std::string> texts;
  for (int other = 0; other < size; ++other) {
    texts.push_back(get(fmt::format("text {} of rank {}", number, other)));
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
  // The ranks are part of the name: groups that don't agree never meet.
  auto prefix = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group {} of {}", number, fmt::join(ranks, "-")), store);
  WorldOptions options = options_;
  return World(std::make_shared<const Impl>(
      std::move(prefix), static_cast<int>(found - ranks.begin()),
      static_cast<int>(ranks.size()), master_addr_, options));
}

}  // namespace lockstep
