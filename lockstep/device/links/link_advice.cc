#include "lockstep/device/links/link_advice.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string iommu_options(const fs::path& file) {
  std::ifstream in(file);
  std::string word, found;
  while (in >> word) {
    if (!word.starts_with("iommu=") && !word.starts_with("intel_iommu=") &&
        !word.starts_with("amd_iommu=") &&
        !word.starts_with("iommu.passthrough=") &&
        !word.starts_with("pci=disable_acs_redir")) {
      continue;
    }
    found += (found.empty() ? "" : " ") + word;
  }
  return found;
}

uint32_t number_at(const std::string& bytes, size_t at, size_t size) {
  uint32_t number = 0;
  for (size_t i = 0; i < size && at + i < bytes.size(); ++i) {
    number |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i]))
              << (8 * i);
  }
  return number;
}

// PCI Express Base Specification, 7.7.8 (ACS Extended Capability) and 7.6.3
// (header of an extended capability): the ID is in bits 0 to 15, and the offset
// of the next capability in bits 20 to 31. In the control register, bit 2 is
// P2P Request Redirect, bit 3 P2P Completion Redirect.
bool redirects(const std::string& config) {
  constexpr uint32_t kFirst = 0x100, kAcs = 0x000d, kRedirects = 0x000c;
  constexpr size_t kControl = 6;
  constexpr int kMax = 64;  // limit, because a damaged list may be circular
  uint32_t at = kFirst;
  for (int i = 0; i < kMax && at >= kFirst && at + 8 <= config.size(); ++i) {
    const uint32_t header = number_at(config, at, 4);
    if ((header & 0xffff) == kAcs) {
      return (number_at(config, at + kControl, 2) & kRedirects) != 0;
    }
    at = header >> 20;
  }
  return false;
}

// Class 0x0604: a bridge between PCI buses.
bool is_bridge(const fs::path& device) {
  std::ifstream in(device / "class");
  std::string text;
  in >> text;
  return text.starts_with("0x0604");
}

std::string read_config(const fs::path& device) {
  std::ifstream in(device / "config", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

HostPciFacts gather_pci_facts(const fs::path& root) {
  HostPciFacts facts;
  facts.iommus = names_in(root / "sys/class/iommu");
  facts.iommu_options = iommu_options(root / "proc/cmdline");
  const fs::path devices = root / "sys/bus/pci/devices";
  for (const std::string& name : names_in(devices)) {
    if (is_bridge(devices / name) && redirects(read_config(devices / name))) {
      facts.redirecting_bridges.push_back(name);
    }
  }
  return facts;
}

std::vector<std::string> advice_on_bad_links(const HostPciFacts& facts) {
  std::vector<std::string> lines;
  const bool passes =
      facts.iommu_options.find("iommu=pt") != std::string::npos ||
      facts.iommu_options.find("passthrough=1") != std::string::npos;
  if (!facts.iommus.empty() && !passes) {
    lines.push_back(fmt::format(
        "The IOMMU is on ({}) and translates what GPUs write to each other, "
        "though the driver says that they can: boot the kernel with iommu=pt, "
        "or switch the IOMMU (VT-d, AMD-Vi) off in the firmware.",
        fmt::join(facts.iommus, ", ")));
  }
  if (!facts.redirecting_bridges.empty()) {
    lines.push_back(fmt::format(
        "Access control (ACS) of the PCI bridges {} sends such writes to the "
        "root complex: switch ACS off in the firmware, or with setpci as root.",
        fmt::join(facts.redirecting_bridges, ", ")));
  }
  if (lines.empty()) {
    lines.push_back(
        "Neither an IOMMU that translates nor a bridge that redirects (ACS, "
        "which root alone can see) was found: look at the driver's version, "
        "the risers and cables, and `dmesg` for page faults of the IOMMU.");
  }
  return lines;
}

}  // namespace lockstep
