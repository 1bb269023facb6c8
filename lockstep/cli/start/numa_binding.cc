#include "lockstep/cli/start/numa_binding.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <hwloc.h>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using Cores = std::vector<int>;

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw LaunchError(
      {.code = ErrorCode::kNoSuchDevice,
       .what = "can't bind the workers to cores: " + what,
       .expected = expected,
       .got = got,
       .fix = "leave out --numa-binding; --pin-cores on divides the cores "
              "equally instead"});
}

Cores common(const Cores& cores, const hwloc_bitmap_s* set) {
  Cores result;
  std::ranges::copy_if(cores, std::back_inserter(result), [set](int core) {
    return hwloc_bitmap_isset(set, static_cast<unsigned>(core)) != 0;
  });
  return result;
}

// Groups cores by the largest object of a kind that contains each. The groups
// are in the order of the first cores of these objects.
std::vector<Cores> grouped(hwloc_topology* host, const Cores& cores,
                           bool (*is_of_kind)(hwloc_obj_type_t)) {
  std::map<int, Cores> groups;
  for (const int core : cores) {
    const auto* group =
        hwloc_get_pu_obj_by_os_index(host, static_cast<unsigned>(core));
    for (auto* at = group->parent; at != nullptr; at = at->parent) {
      if (is_of_kind(at->type)) group = at;
    }
    groups[hwloc_bitmap_first(group->complete_cpuset)].push_back(core);
  }
  std::vector<Cores> result;
  for (auto& [first, group] : groups) result.push_back(std::move(group));
  return result;
}

bool is_physical_core(hwloc_obj_type_t type) { return type == HWLOC_OBJ_CORE; }
bool is_cache(hwloc_obj_type_t type) {
  return hwloc_obj_type_is_dcache(type) != 0;
}

// Returns part `index` of `count` parts of the physical cores. The first parts
// have one core more if the cores can't be divided equally.
Cores exclusive_part(const std::vector<Cores>& physical, size_t index,
                     size_t count) {
  const size_t width = physical.size() / count;
  if (width == 0) {
    refuse("a NUMA node has too few cores for --numa-binding exclusive",
           fmt::format("at least {} physical cores", count),
           std::to_string(physical.size()));
  }
  const size_t longer = physical.size() % count;
  const size_t begin = index * width + std::min(index, longer);
  const size_t end = begin + width + (index < longer ? 1 : 0);
  Cores cores;
  for (size_t k = begin; k < end; ++k) {
    cores.insert(cores.end(), physical[k].begin(), physical[k].end());
  }
  std::ranges::sort(cores);
  return cores;
}

Cores cores_of_socket(hwloc_topology* host, int core, const Cores& allowed) {
  auto* pu = hwloc_get_pu_obj_by_os_index(host, static_cast<unsigned>(core));
  auto* socket = hwloc_get_ancestor_obj_by_type(host, HWLOC_OBJ_PACKAGE, pu);
  return socket == nullptr ? allowed : common(allowed, socket->cpuset);
}

// Returns the allowed cores of each NUMA node that has some. Memory without
// cores, such as a node of HBM, counts as part of a node before it.
std::map<int, Cores> cores_of_nodes(hwloc_topology* host,
                                    const Cores& allowed) {
  std::map<int, Cores> nodes;
  std::set<int> first_cores;
  const auto* all = hwloc_topology_get_topology_nodeset(host);
  for (int n = hwloc_bitmap_first(all); n >= 0; n = hwloc_bitmap_next(all, n)) {
    const auto* node =
        hwloc_get_numanode_obj_by_os_index(host, static_cast<unsigned>(n));
    Cores cores = common(allowed, node->cpuset);
    if (cores.empty() || !first_cores.insert(cores.front()).second) continue;
    nodes[n] = std::move(cores);
  }
  return nodes;
}

// Returns the NUMA node of each GPU, or of each worker if there are no GPUs.
std::vector<int> places_on(hwloc_topology* host,
                           const std::map<int, Cores>& nodes, size_t workers,
                           const std::vector<std::string>& gpus) {
  std::vector<int> places;
  for (const auto& address : gpus) {
    auto* gpu = hwloc_get_pcidev_by_busidstring(host, address.c_str());
    if (gpu == nullptr) {
      refuse("hwloc does not find a GPU", "the PCI device " + address, "none");
    }
    gpu = hwloc_get_non_io_ancestor_obj(host, gpu);
    places.push_back(hwloc_bitmap_first(gpu->nodeset));
  }
  for (size_t rank = 0; gpus.empty() && rank < workers; ++rank) {
    const auto index = static_cast<int>(rank * nodes.size() / workers);
    places.push_back(std::next(nodes.begin(), index)->first);
  }
  return places;
}

}  // namespace

std::vector<Cores> bind_to_numa(const std::string& mode, int workers,
                                const std::vector<std::string>& gpus,
                                Cores allowed) {
  if (!gpus.empty() && gpus.size() < static_cast<size_t>(workers)) {
    refuse("there are fewer GPUs than workers",
           fmt::format("a GPU for each of {} workers", workers),
           std::to_string(gpus.size()));
  }
  hwloc_topology_t host = nullptr;
  hwloc_topology_init(&host);
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>
      owner(host, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(host, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(host) != 0) {
    refuse("hwloc can't read the topology of the host", "no error",
           std::strerror(errno));
  }
  std::ranges::sort(allowed);
  const auto nodes = cores_of_nodes(host, allowed);
  const auto places =
      places_on(host, nodes, static_cast<size_t>(workers), gpus);
  std::vector<Cores> bound;
  for (auto at = places.begin(); bound.size() < static_cast<size_t>(workers);
       ++at) {
    const auto node = nodes.find(*at);
    if (node == nodes.end()) {
      refuse(fmt::format("NUMA node {} has no core that may be used", *at),
             "a node with cores that the agent may use", "none");
    }
    const Cores& cores = node->second;
    // The position among the GPUs of this node.
    const auto index = static_cast<size_t>(std::count(places.begin(), at, *at));
    if (mode == "socket") {
      bound.push_back(cores_of_socket(host, cores.front(), allowed));
    } else if (mode == "exclusive") {
      bound.push_back(
          exclusive_part(grouped(host, cores, is_physical_core), index,
                         static_cast<size_t>(std::ranges::count(places, *at))));
    } else if (mode == "core-complex") {
      auto complexes = grouped(host, cores, is_cache);
      std::ranges::stable_sort(complexes, std::greater<>(), &Cores::size);
      bound.push_back(complexes[index % complexes.size()]);
    } else {
      bound.push_back(cores);
    }
  }
  return bound;
}

}  // namespace lockstep::cli
