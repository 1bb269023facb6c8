#include "lockstep/inspect/device_topology.h"

#include <hwloc.h>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/inspect/nvml.h"

namespace lockstep::inspect {
namespace {

struct TopologyEnd {
  void operator()(hwloc_topology* topology) const {
    hwloc_topology_destroy(topology);
  }
};
using Hwloc = std::unique_ptr<hwloc_topology, TopologyEnd>;

struct BitmapEnd {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapEnd>;

Hwloc load(const char* description) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) {
    throw Error("topo", {.code = ErrorCode::kOutOfResources,
                         .what = "hwloc can't start"});
  }
  Hwloc topology(made);
  const bool is_read =
      description == nullptr ||
      hwloc_topology_set_synthetic(topology.get(), description) == 0;
  if (!is_read || hwloc_topology_load(topology.get()) != 0) {
    throw InvalidArgument(
        "topo", {.code = ErrorCode::kMalformedData,
                 .what = "hwloc can't read the topology",
                 .got = description == nullptr ? "this host's" : description});
  }
  return topology;
}

Bitmap set_of(const std::vector<int>& cores) {
  Bitmap set(hwloc_bitmap_alloc());
  for (const int core : cores) {
    hwloc_bitmap_set(set.get(), static_cast<unsigned>(core));
  }
  return set;
}

// Returns the memory nodes that are local to these cores.
Bitmap nodes_of(hwloc_topology_t topology, const hwloc_bitmap_s* cores) {
  Bitmap nodes(hwloc_bitmap_alloc());
  hwloc_cpuset_to_nodeset(topology, cores, nodes.get());
  return nodes;
}

ConnectionKind kind_between(hwloc_topology_t topology,
                            const std::vector<int>& one,
                            const std::vector<int>& other) {
  const Bitmap both = set_of(one);
  hwloc_bitmap_or(both.get(), both.get(), set_of(other).get());
  hwloc_obj_t shared = hwloc_get_obj_covering_cpuset(topology, both.get());
  if (shared == nullptr) return ConnectionKind::kUnknown;
  // Find the nearest ancestor with a meaning.
  for (; shared != nullptr; shared = shared->parent) {
    switch (shared->type) {
      case HWLOC_OBJ_PU:
      case HWLOC_OBJ_CORE:
      case HWLOC_OBJ_L1CACHE:
        return ConnectionKind::kCore;
      case HWLOC_OBJ_L2CACHE:
        return ConnectionKind::kL2;
      case HWLOC_OBJ_L3CACHE:
        return ConnectionKind::kL3;
      default:
        break;
    }
    if (shared->type == HWLOC_OBJ_PACKAGE || shared->type == HWLOC_OBJ_GROUP ||
        shared->type == HWLOC_OBJ_DIE || shared->type == HWLOC_OBJ_MACHINE) {
      break;
    }
  }
  const Bitmap nodes = nodes_of(topology, both.get());
  return hwloc_bitmap_weight(nodes.get()) > 1 ? ConnectionKind::kSys
                                              : ConnectionKind::kNode;
}

std::vector<int> numbers_in(const hwloc_bitmap_s* set) {
  std::vector<int> numbers;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) {
    numbers.push_back(i);
  }
  return numbers;
}

Topology between(hwloc_topology_t host,
                 const std::vector<std::vector<int>>& cores) {
  Topology topology;
  for (size_t i = 0; i < cores.size(); ++i) {
    const Bitmap set = set_of(cores[i]);
    topology.devices.push_back({.name = fmt::format("cpu:{}", i),
                                .cpu_affinity = format_ranges(cores[i]),
                                .numa_affinity = format_ranges(numbers_in(
                                    nodes_of(host, set.get()).get()))});
    auto& row = topology.connections.emplace_back();
    for (size_t j = 0; j < cores.size(); ++j) {
      row.push_back({i == j ? ConnectionKind::kSelf
                            : kind_between(host, cores[i], cores[j])});
    }
  }
  return topology;
}

// Returns how the slices of this host are connected.
Topology host_topology(std::span<const Device> slices) {
  std::vector<std::vector<int>> cores;
  for (const Device& slice : slices) cores.push_back(cores_of(slice));
  Topology topology = between(load(nullptr).get(), cores);
  for (size_t i = 0; i < slices.size(); ++i) {
    topology.devices[i].name = slices[i].name();
  }
  return topology;
}

// LibTorch does not know how its other accelerators are connected.
Topology unknown_topology(std::span<const Device> devices) {
  Topology topology;
  for (size_t i = 0; i < devices.size(); ++i) {
    topology.devices.push_back(
        {.name = devices[i].name(), .cpu_affinity = "", .numa_affinity = ""});
    topology.connections.emplace_back(devices.size());
    topology.connections[i][i].kind = ConnectionKind::kSelf;
  }
  return topology;
}

}  // namespace

Topology device_topology(std::span<const Device> devices) {
  if (devices.front().is_cpu()) return host_topology(devices);
  if (!devices.front().is_cuda()) return unknown_topology(devices);
  std::vector<std::string> uuids;
  for (const Device& device : devices) {
    uuids.push_back(cuda::uuid(device.index));
  }
  auto topology = nvml_topology(uuids);
  if (!topology) {
    throw DeviceError({.code = ErrorCode::kDeviceFailed,
                       .what = "NVML, which knows how GPUs are connected, does "
                               "not answer",
                       .expected = "libnvidia-ml.so.1 of the driver",
                       .fix = "install the driver's own libraries"});
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    topology->devices[i].name = fmt::format("GPU{}", devices[i].index);
  }
  return *topology;
}

Topology synthetic_topology(const std::string& description,
                            const std::vector<std::vector<int>>& cores) {
  return between(load(description.c_str()).get(), cores);
}

}  // namespace lockstep::inspect
