#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::launch {

/// A folder with the /sys of a host that has 2 sockets with 2 NUMA nodes each.
/// A node has 4 physical cores with 2 logical cores each: node 1 has the cores
/// 4-7 and 20-23, and 4 and 20 are one physical core. Two physical cores share
/// an L3 cache, but in node 3 the first core has a cache of its own.
class FakeHost {
 public:
  static constexpr int kPhysical = 16;

  FakeHost() {
    write("node/possible", "0-3,5");  // node 5 is not present
    for (int node = 0; node < 4; ++node) {
      write(fmt::format("node/node{}/cpulist", node),
            fmt::format("{}-{},{}-{}", 4 * node, 4 * node + 3, 4 * node + 16,
                        4 * node + 19));
    }
    for (int core = 0; core < 2 * kPhysical; ++core) write_core(core);
  }

  /// Adds a GPU in `node` and returns its PCI address.
  std::string add_gpu(int node) {
    const std::string address = fmt::format("0000:{:02x}:00.0", ++gpus_);
    write_text(root() + "/sys/bus/pci/devices/" + address + "/numa_node",
               fmt::format("{}\n", node));
    return address;
  }

  /// Replaces a file below /sys/devices/system.
  void write(const std::string& path, const std::string& text) {
    write_text(root() + "/sys/devices/system/" + path, text + "\n");
  }

  std::string root() const { return folder_.path(); }

  static std::vector<int> all_cores() {
    std::vector<int> cores(2 * kPhysical);
    for (size_t k = 0; k < cores.size(); ++k) cores[k] = static_cast<int>(k);
    return cores;
  }

 private:
  void write_core(int core) {
    const int physical = core % kPhysical;
    const int node = physical / 4;
    const std::string cpu = fmt::format("cpu/cpu{}/", core);
    const std::string own =
        fmt::format("{},{}", physical, physical + kPhysical);
    write(cpu + "topology/physical_package_id", std::to_string(node / 2));
    write(cpu + "topology/thread_siblings_list", own);
    const int split = node == 3 ? 13 : 4 * node + 2;
    const int first = physical < split ? 4 * node : split;
    const int last = physical < split ? split - 1 : 4 * node + 3;
    write_cache(cpu + "cache/index0/", "Data", 1, own);
    write_cache(cpu + "cache/index1/", "Instruction", 4, own);
    write_cache(cpu + "cache/index2/", "Unified", 2, own);
    write_cache(cpu + "cache/index3/", "Unified", 3,
                fmt::format("{}-{},{}-{}", first, last, first + kPhysical,
                            last + kPhysical));
  }

  void write_cache(const std::string& path, const std::string& type, int level,
                   const std::string& cores) {
    write(path + "type", type);
    write(path + "level", std::to_string(level));
    write(path + "shared_cpu_list", cores);
  }

  TemporaryFolder folder_;
  int gpus_ = 0;
};

}  // namespace lockstep::launch
