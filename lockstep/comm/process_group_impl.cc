#include "lockstep/comm/process_group_impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <type_traits>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/log.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/solo_transport.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/shm/group.h"
#include "lockstep/shm/shm_transport.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/store/wire.h"
#include "lockstep/tcp/door.h"
#include "lockstep/tcp/listener.h"
#include "lockstep/tcp/mesh.h"
#include "lockstep/tcp/tcp_transport.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPiece{500};
// torch's TCPStore logs a warning for each wait that times out.
constexpr std::chrono::milliseconds kPieceOfTorch{5000};
// Texts that are longer together are read one by one, so that the store does
// not keep them twice.
constexpr size_t kMaxJoinedBytes = 1 << 20;
constexpr const char* kTooLong = "too long";

double seconds_of(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

/// Returns a text that is the same for two ranks if they are on one host and
/// can map each other's memory. It names the running kernel, the namespaces of
/// processes and of the network, and the user. The host's name and address are
/// not enough, because containers share them, or have none.
std::string place_of_this_process() {
  return fmt::format("{} {} {} user {}", boot_id(), namespace_id("pid"),
                     namespace_id("net"), ::geteuid());
}

/// Passes what rank 0 makes to the other ranks, bytes and all.
template <class T, class Make>
T from_rank_0(c10d::Store& store, const std::string& key, int rank,
              const Make& make) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (rank == 0) {
    const T value = make();
    std::vector<uint8_t> message(sizeof(value));
    std::memcpy(message.data(), &value, sizeof(value));
    store.set(key, message);
    return value;
  }
  const std::vector<uint8_t> message = store.get(key);
  if (message.size() != sizeof(T)) {
    throw CommError({.code = ErrorCode::kRanksNotConnected,
                     .what = fmt::format("what rank 0 put into the store as "
                                         "'{}' is not what it should be",
                                         key),
                     .expected = fmt::format("{} bytes", sizeof(T)),
                     .got = fmt::format("{} bytes", message.size()),
                     .fix = transport::kUseOneBuild});
  }
  T value;
  std::memcpy(&value, message.data(), sizeof(value));
  return value;
}

std::string joined_texts(const std::vector<std::string>& texts) {
  store::FieldWriter joined;
  for (const std::string& text : texts) joined.bytes(text);
  return joined.take();
}

std::vector<std::string> split_texts(const std::string& joined, size_t count) {
  store::FieldReader fields(joined);
  std::vector<std::string> texts;
  while (texts.size() < count) texts.push_back(fields.bytes(joined.size()));
  fields.end();
  return texts;
}

/// The first thing that a rank tells the others.
struct Introduction {
  std::string place;        ///< place_of_this_process()
  std::string device_type;  ///< "cpu"
  std::string name;         ///< in error messages: "rank 1 (host a, pid 7)"
};

std::string text_of_introduction(const Introduction& own) {
  return joined_texts({own.place, own.device_type, own.name});
}

Introduction introduction_in(const std::string& text) {
  auto fields = split_texts(text, 3);
  return {.place = std::move(fields[0]),
          .device_type = std::move(fields[1]),
          .name = std::move(fields[2])};
}

/// A group's view of a store that may have other users. It has its own key
/// prefix and timeout, so the timeout of that store is not changed.
class GroupStore : public c10d::PrefixStore {
 public:
  GroupStore(c10::intrusive_ptr<c10d::Store> store,
             std::chrono::milliseconds timeout)
      : PrefixStore("world", std::move(store)) {
    timeout_ = timeout;
  }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<GroupStore>(store_->clone(), timeout_);
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

c10::intrusive_ptr<c10d::TCPStore> tcp_store_of(c10d::Store& store) {
  auto* const prefix = dynamic_cast<c10d::PrefixStore*>(&store);
  if (prefix == nullptr) return nullptr;
  const auto base = prefix->getUnderlyingNonPrefixStore();
  auto* const tcp = dynamic_cast<c10d::TCPStore*>(base.get());
  // c10's own cast of a temporary pointer leaks an object of another class.
  return tcp == nullptr ? nullptr
                        : c10::intrusive_ptr<c10d::TCPStore>::reclaim_copy(tcp);
}

void check_device_types(const std::vector<std::string>& types) {
  const auto other = std::find_if(
      types.begin(), types.end(),
      [&](const std::string& type) { return type != types.front(); });
  if (other == types.end()) return;
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kMixedDevices,
               .what = "the ranks use different types of device",
               .expected = "the same type on all ranks",
               .got = fmt::format("{} on rank 0, {} on rank {}", types.front(),
                                  *other, other - types.begin()),
               .fix = "give all ranks the same --devices, or the same "
                      "ProcessGroupOptions().device_type()"});
}

ProcessGroup::Impl::Impl()
    : direct(c10::make_intrusive<HostBackend>(
          std::make_unique<SoloTransport>(), tcp::Door(), nullptr, 0, 1,
          std::nullopt, HostBackend::Timeout())) {}

ProcessGroup::Impl::Impl(c10::intrusive_ptr<c10d::Store> the_store,
                         int the_rank, int the_size, std::string master_addr,
                         const ProcessGroupOptions& options)
    : rank(the_rank),
      size(the_size),
      timeout(options.timeout()),
      store(c10::make_intrusive<GroupStore>(std::move(the_store),
                                            options.timeout())),
      master_addr_(std::move(master_addr)),
      options_(options) {
  if (options_.backend() == "gloo") {
    options_.backend("tcp");
    if (rank == 0) {
      log_warning("comm", "the backend gloo is called tcp now; use tcp");
    }
  }
  const Introduction own{
      .place = place_of_this_process(),
      .device_type = c10::DeviceTypeName(options_.device_type(), true),
      .name = fmt::format("rank {} (host {}, pid {})", rank, host_name(),
                          ::getpid())};
  std::vector<std::string> places, types;
  for (const auto& text : all_gather_text(text_of_introduction(own))) {
    Introduction peer = introduction_in(text);
    places.push_back(std::move(peer.place));
    types.push_back(std::move(peer.device_type));
    names_.push_back(std::move(peer.name));
  }
  check_device_types(types);
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

std::string ProcessGroup::Impl::choose_backend(
    const std::vector<std::string>& places) const {
  std::string name = options_.backend();
  const bool is_one_host = local_size == size;
  if (name == "auto") {
    const auto registered = device_backend(options_.device_type());
    name = registered ? registered->name : is_one_host ? "shm" : "tcp";
  }
  const auto registered = device_backend(name);
  if (name != "shm" && name != "tcp" && !registered) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kUnknownName,
         .what = "no such backend",
         .expected = fmt::format("one of {}", fmt::join(backend_names(), ", ")),
         .got = name});
  }
  if (registered && registered->device_type != options_.device_type()) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBadOption,
         .what = fmt::format("backend {} does not work on {} tensors", name,
                             c10::DeviceTypeName(options_.device_type(), true)),
         .fix = fmt::format(
             "set ProcessGroupOptions().device_type() to {}, or use shm or tcp",
             c10::DeviceTypeName(registered->device_type, true))});
  }
  if (name == "shm" && !is_one_host) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBadOption,
         .what = "backend shm needs all ranks on one host",
         .expected = "one kernel, process and network namespace, and user",
         .got = fmt::format("ranks at: {}", fmt::join(places, "; ")),
         .fix = "use the backend tcp or auto"});
  }
  return name;
}

void ProcessGroup::Impl::connect(const std::string& backend_name) {
  const auto registered = device_backend(backend_name);
  if (registered) avoid_bad_links(*registered);
  if (options_.device_type() != torch::kCPU) {
    const std::string own = local_size == size ? "shm" : "tcp";
    host = connect_host(registered ? own : backend_name,
                        c10::make_intrusive<c10d::PrefixStore>("host", store),
                        torch::kCPU);
  }
  if (!registered) {
    direct = connect_host(backend_name, store, options_.device_type());
    return;
  }
  foreign = std::make_unique<ForeignBackend>(
      registered->make(store, rank, size, timeout), registered->name,
      registered->device_type);
}

c10::intrusive_ptr<HostBackend> ProcessGroup::Impl::connect_host(
    const std::string& backend_name,
    const c10::intrusive_ptr<c10d::Store>& host_store,
    c10::DeviceType device_type) const {
  std::unique_ptr<transport::Transport> bytes;
  tcp::Door door;
  if (backend_name == "shm") {
    // Before the group, so that when all ranks have joined that, all of them
    // listen for messages.
    door = tcp::local_door(
        from_rank_0<tcp::LocalPlace>(*host_store, "shm/messages", rank,
                                     &tcp::LocalPlace::random),
        rank, size);
    std::shared_ptr<const shm::Segment> segment;
    const auto address =
        from_rank_0<shm::SegmentAddress>(*host_store, "shm/segment", rank, [&] {
          segment = shm::Group::make_segment(size);
          return segment->address();
        });
    if (!segment) segment = shm::Segment::open(address);
    bytes = std::make_unique<shm::ShmTransport>(std::move(segment), rank, size,
                                                timeout);
  } else {
    // This can't be a part of the introduction, because the address depends on
    // the places of all ranks, and ranks over shm listen nowhere.
    const std::string address = tcp::local_address_towards(
        local_size == size ? store::loopback_host() : master_addr_);
    tcp::Listener listener(
        address, env("GLOO_SOCKET_IFNAME").value_or(""),
        wants_encryption() ? tcp::Data::kEncrypted : tcp::Data::kPlain);
    const auto announcements = all_gather_text(listener.announcement());
    auto sockets = listener.connect(rank, announcements,
                                    std::chrono::steady_clock::now() + timeout,
                                    [] { return control::is_attempt_over(); });
    bytes = std::make_unique<tcp::TcpTransport>(std::make_unique<tcp::Mesh>(
        rank, std::move(sockets), names_,
        local_size == size ? tcp::Mesh::Hosts::kOne
                           : tcp::Mesh::Hosts::kSeveral));
    door = std::move(listener).door(announcements);
    // If a rank ended while others are still connecting, their connections
    // would fail.
    all_gather_text("connected");
  }
  return c10::make_intrusive<HostBackend>(std::move(bytes), std::move(door),
                                          host_store, rank, size, device_type,
                                          timeout);
}

void ProcessGroup::Impl::check_home() const {
  if (size == 1) return;
  if (const HostBackend* own = host ? host.get() : direct.get()) {
    own->check_home();
  }
}

bool ProcessGroup::Impl::wants_encryption() const {
  const bool is_gloos = env("GLOO_DEVICE_TRANSPORT") == "TCP_TLS";
  const bool is_wanted = env_flag("LOCKSTEP_ENCRYPT").value_or(is_gloos);
  if (!is_wanted || rank != 0) return is_wanted;
  if (is_gloos && env("GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT")) {
    log_warning("comm",
                "connections are encrypted with keys from the job's store; the "
                "certificates of GLOO_DEVICE_TRANSPORT_TCP_TLS_* are not used");
  }
  if (tcp_store_of(*store)) {
    log_warning("comm",
                "the ranks meet in PyTorch's TCPStore, through which the keys "
                "of their encrypted connections pass unencrypted; start the "
                "job with lockstep run");
  }
  return is_wanted;
}

// A backend for devices makes its own copies, peer to peer if the driver says
// that it can.
void ProcessGroup::Impl::avoid_bad_links(const DeviceBackend& backend) const {
  if (size == 1) return;
  std::string found;
  if (local_rank == 0 && local_size > 1) {
    const std::vector<Device> all =
        devices(c10::DeviceTypeName(backend.device_type, true));
    guard_links(all, options_.bad_links());
    for (const Link& link : links_between(all)) {
      if (chosen_path(link) == CopyPath::kStaged) found = link.name();
    }
  }
  const auto per_rank = all_gather_text(found);
  const auto bad = std::find_if(per_rank.begin(), per_rank.end(),
                                [](const auto& text) { return !text.empty(); });
  if (bad == per_rank.end()) return;
  if (backend.name == "nccl") {
    ::setenv("NCCL_P2P_DISABLE", "1", /*overwrite=*/1);
    return;
  }
  throw CommError(
      {.code = ErrorCode::kBadLink,
       .what = fmt::format("copies {} arrive corrupted, and the backend {} "
                           "can't be told to avoid them",
                           *bad, backend.name),
       .fix = "use the backend shm or tcp, which copy through the host"});
}

std::string ProcessGroup::Impl::get(
    const std::string& key, const std::vector<std::string>& sources) const {
  // Waits in short pieces and checks in between, because the rank that would
  // set the key may have been lost, which the launcher's agent knows.
  const std::chrono::milliseconds piece =
      control::control_block() == nullptr
          ? timeout
          : std::min(timeout, tcp_store_of(*store) ? kPieceOfTorch : kPiece);
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
          {.code = ErrorCode::kRanksNotConnected,
           .what = fmt::format("rank {} of {} did not find '{}' in the store{}",
                               rank, size,
                               is_broken ? key : first_missing(sources, key),
                               is_late ? ": timed out" : ""),
           .expected = fmt::format("it within {} s", seconds_of(timeout)),
           .got = first_line(text_of(error)),
           .fix = "look at that rank's own output; start all ranks; if it only "
                  "needs longer, raise the timeout"});
    }
  }
}

std::string ProcessGroup::Impl::first_missing(
    const std::vector<std::string>& keys, const std::string& fallback) const {
  for (const std::string& key : keys) {
    if (!store->check({key})) return key;
  }
  return fallback;
}

// Rank 0 collects the texts and publishes them under one key. If every rank
// asked the store for every text, the requests would grow with the square of
// the number of ranks.
std::vector<std::string> ProcessGroup::Impl::all_gather_text(
    const std::string& text) const {
  if (size == 1) return {text};
  check_home();
  const int number = texts_++;
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) {
    keys.push_back(fmt::format("text {} of rank {}", number, peer));
  }
  store->set(keys[static_cast<size_t>(rank)], text);
  const std::string joined_key = fmt::format("all texts {}", number);
  if (rank != 0) {
    const std::string joined = get(joined_key, keys);
    if (joined != kTooLong) return split_texts(joined, keys.size());
  }
  std::vector<std::string> texts;
  for (const std::string& key : keys) texts.push_back(get(key));
  if (rank == 0) {
    const std::string joined = joined_texts(texts);
    store->set(joined_key,
               joined.size() <= kMaxJoinedBytes ? joined : kTooLong);
  }
  return texts;
}

std::optional<ProcessGroup> ProcessGroup::Impl::new_group(
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
  check_home();
  const int number = groups_++;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  if (ranks.size() == 1) return ProcessGroup();
  // The ranks are part of the name, so that ranks which ask for different
  // groups never meet.
  auto prefix = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group {} of {}", number, fmt::join(ranks, "-")), store);
  ProcessGroupOptions options = options_;
  return ProcessGroup(std::make_shared<const Impl>(
      std::move(prefix), static_cast<int>(found - ranks.begin()),
      static_cast<int>(ranks.size()), master_addr_, options));
}

}  // namespace lockstep
