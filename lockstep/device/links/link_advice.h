#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// What of the host makes copies between GPUs go astray.
struct HostPciFacts {
  std::vector<std::string> iommus;  ///< those that the kernel drives
  std::string iommu_options;  ///< of the kernel's command line: "iommu=pt"
  /// PCI bridges that send what GPUs write to each other upwards (ACS); known
  /// to root alone.
  std::vector<std::string> redirecting_bridges;
};

/// `root` is where /proc and /sys are found: a test brings its own.
HostPciFacts gather_pci_facts(const std::filesystem::path& root = "/");

/// Why links go bad here and how to cure that, in sentences, each a line.
std::vector<std::string> advice_on_bad_links(const HostPciFacts& facts);

}  // namespace lockstep
