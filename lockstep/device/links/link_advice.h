#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// Facts about the host that can cause bad copies between GPUs.
struct HostPciFacts {
  std::vector<std::string> iommus;  ///< IOMMUs that the kernel drives
  std::string iommu_options;  ///< from the kernel's command line: "iommu=pt"
  /// PCI bridges that redirect writes between GPUs upstream (ACS). Only root
  /// can read them.
  std::vector<std::string> redirecting_bridges;
};

/// `root` is the folder that contains /proc and /sys. Tests pass another one.
HostPciFacts gather_pci_facts(const std::filesystem::path& root = "/");

/// Returns why links are bad on this host and how to fix them, one line per
/// sentence.
std::vector<std::string> advice_on_bad_links(const HostPciFacts& facts);

}  // namespace lockstep
