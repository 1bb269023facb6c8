#include "lockstep/simulate/network.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/collectives.h"
#include "lockstep/tcp/collectives.h"

namespace lockstep::simulate {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& expected,
                       const std::string& fix) {
  throw InvalidArgument("simulate", {.code = ErrorCode::kBadOption,
                                     .what = what,
                                     .expected = expected,
                                     .fix = fix});
}

double bandwidth_of(double bytes_per_s, const std::string& name,
                    const std::string& option) {
  if (bytes_per_s > 0) return bytes_per_s;
  fail("the bandwidth " + name + " is not known", "a number above 0",
       "add " + option + " GB/s");
}

/// Returns the bandwidth at `hosts`, on a line between the logarithms of the
/// measured values on both sides.
double bus_at(const std::map<int64_t, double>& table, int64_t hosts) {
  const auto above = table.lower_bound(hosts);
  if (above != table.end() && above->first == hosts) return above->second;
  if (above == table.end() || above == table.begin()) {
    fail(fmt::format("the bus bandwidth of {} hosts is not known", hosts),
         fmt::format("{} to {} hosts", table.begin()->first,
                     table.rbegin()->first),
         fmt::format("add {}:GB/s to --bus-bandwidth, or leave out that number "
                     "of --ranks",
                     hosts));
  }
  const auto below = std::prev(above);
  const auto log_of = [](int64_t n) {
    return std::log(static_cast<double>(n));
  };
  const double part = (log_of(hosts) - log_of(below->first)) /
                      (log_of(above->first) - log_of(below->first));
  return below->second * std::pow(above->second / below->second, part);
}

AllReduceCost cost_of(Algorithm algorithm, bool is_one_host, int64_t ranks,
                      double bytes) {
  if (algorithm == Algorithm::kRing) return ring_cost(ranks, bytes);
  const bool uses_shm = algorithm == Algorithm::kAuto && is_one_host;
  return uses_shm ? shm_cost(ranks, bytes) : tcp_cost(ranks, bytes);
}

/// Returns the time in which the traffic between hosts passes their links and
/// the links of their switches. `sent` is what a rank sends.
double between_hosts_s(const Network& network, int64_t ranks, double sent) {
  const double bandwidth =
      bandwidth_of(network.between.bytes_per_s, "between hosts", "--bandwidth");
  const auto n = static_cast<double>(ranks);
  const auto per_host = static_cast<double>(network.ranks_per_host);
  const double per_switch =
      per_host * static_cast<double>(network.hosts_per_switch);
  const bool has_switches = network.hosts_per_switch > 0 && n > per_switch;
  const double uplink = bandwidth / network.oversubscription;
  if (network.algorithm == Algorithm::kRing) {
    // A ring crosses the links of a host, and those of a switch, once.
    const double hosts = static_cast<double>(network.hosts_per_switch);
    return sent /
           (has_switches ? std::min(bandwidth, uplink * hosts) : bandwidth);
  }
  // Every rank sends the same to every other rank.
  const auto leaving = [&](double inside) {
    return per_host * sent * (n - inside) / (n - 1);
  };
  const double host_s = leaving(per_host) / bandwidth;
  return has_switches ? std::max(host_s, leaving(per_switch) / uplink) : host_s;
}

/// Returns the time in which one of `here` ranks of a host moves `moved` bytes
/// for a message of `bytes`.
double within_host_s(const Network& network, double here, double bytes,
                     double moved) {
  const double near_s =
      moved / bandwidth_of(network.host.bytes_per_s, "within a host",
                           "--host-bandwidth");
  const auto cores = static_cast<double>(network.cores_per_host);
  const double ranks_per_core = cores > 0 ? std::max(1.0, here / cores) : 1;
  const double cached = network.cache_bytes / ranks_per_core / bytes;
  if (network.cache_bytes == 0 || cached >= 1) return near_s;
  const double far_s =
      moved / bandwidth_of(network.memory_bytes_per_s, "beyond the caches",
                           "--memory-bandwidth");
  return cached * near_s + (1 - cached) * far_s;
}

}  // namespace

AllReduceCost shm_cost(int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  const bool has_teams = ranks > shm::kFlatSyncRanks;
  const double waits = has_teams ? 3 : 1;
  // The leader of a team reads the most.
  const double words =
      has_teams ? shm::kFlatSyncRanks - 2 + std::ceil(n / shm::kFlatSyncRanks)
                : n - 1;
  if (bytes <= static_cast<double>(shm::kOneShotBytes) / n) {
    return {.waits = waits, .messages = words, .bytes = n * bytes};
  }
  const double segment = std::min(static_cast<double>(shm::kMaxPieceBytes) * n,
                                  static_cast<double>(shm::kSlotBytes));
  const double syncs = 1 + std::ceil(bytes / segment);
  return {.waits = waits * syncs,
          .messages = words * syncs,
          .bytes = (3 * (n - 1) + 1) / n * bytes};
}

AllReduceCost tcp_cost(int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  if ((n - 1) * bytes <= static_cast<double>(tcp::kOneStepBytes)) {
    return {.waits = 1, .messages = n - 1, .bytes = (n - 1) * bytes};
  }
  return {
      .waits = 2, .messages = 2 * (n - 1), .bytes = 2 * (n - 1) / n * bytes};
}

AllReduceCost ring_cost(int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  const double steps = 2 * (n - 1);
  return {.waits = steps, .messages = steps, .bytes = steps / n * bytes};
}

int64_t hosts_of(const Network& network, int64_t ranks) {
  return (ranks + network.ranks_per_host - 1) / network.ranks_per_host;
}

double all_reduce_s(const Network& network, int64_t ranks, double bytes) {
  if (ranks == 1 || bytes <= 0) return 0;
  const int64_t hosts = hosts_of(network, ranks);
  const auto cost = cost_of(network.algorithm, hosts == 1, ranks, bytes);
  const auto n = static_cast<double>(ranks);
  const auto here =
      static_cast<double>(std::min(ranks, network.ranks_per_host));
  const auto cores = static_cast<double>(network.cores_per_host);
  const double turns = cores > 0 ? std::max(1.0, std::ceil(here / cores)) : 1;
  const double latency_s =
      cost.waits * (hosts == 1 ? network.host.latency_s
                               : std::max(network.host.latency_s,
                                          network.between.latency_s)) +
      turns * cost.messages * network.message_s;
  if (!network.bus_by_hosts.empty()) {
    return latency_s +
           2 * (n - 1) / n * bytes / bus_at(network.bus_by_hosts, hosts);
  }
  const double link_s =
      hosts == 1 ? 0 : between_hosts_s(network, ranks, cost.bytes);
  if (here == 1) return latency_s + link_s;
  const double host_s = turns * within_host_s(network, here, bytes, cost.bytes);
  return latency_s + std::max(link_s, host_s);
}

}  // namespace lockstep::simulate
