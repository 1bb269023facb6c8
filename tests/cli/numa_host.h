#pragma once

#include <cstdlib>
#include <fstream>
#include <hwloc.h>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep {

/// While it lives, hwloc finds a host with 2 sockets that have 2 NUMA nodes
/// each. A node has 4 physical cores with 2 logical cores each: node 1 has the
/// cores 4-7 and 20-23, and 4 and 20 are one physical core. Two physical cores
/// share an L3 cache.
class NumaHost {
 public:
  NumaHost()
      : NumaHost("package:2 numa:2 l3:2 core:2 pu:2(indexes=2*16:1*2)") {}
  /// Makes another host, as hwloc describes synthetic ones.
  explicit NumaHost(const char* description) {
    hwloc_topology_t host = nullptr;
    hwloc_topology_init(&host);
    EXPECT_EQ(hwloc_topology_set_synthetic(host, description), 0);
    hwloc_topology_load(host);
    char* text = nullptr;
    int size = 0;
    hwloc_topology_export_xmlbuffer(host, &text, &size, 0);
    xml_ = text;
    hwloc_free_xmlbuffer(host, text);
    hwloc_topology_destroy(host);
    write();
    ::setenv("HWLOC_XMLFILE", path().c_str(), 1);
  }
  ~NumaHost() { ::unsetenv("HWLOC_XMLFILE"); }
  NumaHost(const NumaHost&) = delete;
  NumaHost& operator=(const NumaHost&) = delete;

  /// Adds a GPU near `node` and returns its PCI address. A negative node means
  /// that the host does not say where the GPU is.
  std::string add_gpu(int node) {
    const std::string address = fmt::format("0000:{:02x}:00.0", ++gpus_);
    // hwloc lists PCI devices at the end of the object that contains them,
    // which is the group around a node, or the machine.
    const size_t at =
        node < 0
            ? xml_.rfind("</object>")
            : xml_.find(
                  "\n      </object>",
                  xml_.find(fmt::format(
                      "<object type=\"NUMANode\" os_index=\"{}\"", node))) +
                  1;
    xml_.insert(at, fmt::format("<object type=\"PCIDev\" gp_index=\"{}\" "
                                "pci_busid=\"{}\" pci_type=\"0302 [10de:1db4] "
                                "[10de:1214] a1\"/>\n",
                                1000 + gpus_, address));
    write();
    return address;
  }

  static std::vector<int> all_cores() {
    std::vector<int> cores(32);
    for (size_t k = 0; k < cores.size(); ++k) cores[k] = static_cast<int>(k);
    return cores;
  }

 private:
  std::string path() const { return folder_.path("host.xml"); }
  void write() const { std::ofstream(path()) << xml_; }

  TemporaryFolder folder_;
  std::string xml_;
  int gpus_ = 0;
};

}  // namespace lockstep
