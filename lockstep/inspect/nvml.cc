#include "lockstep/inspect/nvml.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::inspect {
namespace {

// The interface of NVML, unchanged since driver 470. The names of nvml.h in the
// CUDA toolkit are in the comments.
using Handle = void*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr unsigned kMaxNvLinks = 36;  // NVML_NVLINK_MAX_LINKS
constexpr unsigned kCapsNvLink = 2;   // NVML_P2P_CAPS_INDEX_NVLINK
constexpr unsigned kCpuWords = 64;    // 4,096 cores
constexpr size_t kUuidBytes = 96;     // NVML_DEVICE_UUID_V2_BUFFER_SIZE

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

std::string bus_id_of(const PciInfo& info) {
  return {info.bus_id, ::strnlen(info.bus_id, sizeof(info.bus_id))};
}

// Converts a value of nvmlGpuTopologyLevel_t.
Connection connection_of_level(unsigned level) {
  switch (level) {
    case 0:
    case 10:
      return {ConnectionKind::kPix};
    case 20:
      return {ConnectionKind::kPxb};
    case 30:
      return {ConnectionKind::kPhb};
    case 40:
      return {ConnectionKind::kNode};
    case 50:
      return {ConnectionKind::kSys};
    default:
      return {ConnectionKind::kUnknown};
  }
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

// Returns the NUMA node of a PCI device, or "" if it is not known. NVML writes
// eight digits of the domain, the kernel four.
std::string numa_node(const std::string& bus_id, const std::string& root) {
  const std::string id = lower(bus_id.size() > 4 ? bus_id.substr(4) : bus_id);
  std::ifstream in(std::filesystem::path(root) / "sys/bus/pci/devices" / id /
                   "numa_node");
  int node = -1;
  in >> node;
  return in && node >= 0 ? fmt::format("{}", node) : "";
}

// NVIDIA's management library. It comes with the driver, so it is opened at run
// time.
class Nvml {
 public:
  explicit Nvml(const std::string& library)
      : opened_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~Nvml() {
    if (is_started_) shutdown_();
    if (opened_ != nullptr) ::dlclose(opened_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Returns false if the library or a function is missing, or if the driver
  /// does not respond.
  bool start() {
    const bool has_all =
        opened_ != nullptr && find(init_, "nvmlInit_v2") &&
        find(shutdown_, "nvmlShutdown") &&
        find(count_, "nvmlDeviceGetCount_v2") &&
        find(by_index_, "nvmlDeviceGetHandleByIndex_v2") &&
        find(uuid_, "nvmlDeviceGetUUID") &&
        find(pci_, "nvmlDeviceGetPciInfo_v3") &&
        find(ancestor_, "nvmlDeviceGetTopologyCommonAncestor") &&
        find(link_state_, "nvmlDeviceGetNvLinkState") &&
        find(link_peer_, "nvmlDeviceGetNvLinkRemotePciInfo_v2") &&
        find(p2p_, "nvmlDeviceGetP2PStatus") &&
        find(affinity_, "nvmlDeviceGetCpuAffinity");
    is_started_ = has_all && init_() == kSuccess;
    return is_started_;
  }

  std::vector<std::pair<std::string, Handle>> devices() const {
    unsigned count = 0;
    if (count_(&count) != kSuccess) return {};
    std::vector<std::pair<std::string, Handle>> found;
    for (unsigned i = 0; i < count; ++i) {
      Handle handle = nullptr;
      std::array<char, kUuidBytes> uuid{};
      if (by_index_(i, &handle) == kSuccess &&
          uuid_(handle, uuid.data(), kUuidBytes - 1) == kSuccess) {
        found.emplace_back(uuid.data(), handle);
      }
    }
    return found;
  }

  std::string bus_id(Handle device) const {
    PciInfo info{};
    return pci_(device, &info) == kSuccess ? bus_id_of(info) : "";
  }

  std::string cpu_affinity(Handle device) const {
    std::array<unsigned long, kCpuWords> words{};
    if (affinity_(device, kCpuWords, words.data()) != kSuccess) return "";
    constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
    std::vector<int> cores;
    for (size_t i = 0; i < kCpuWords * kBits; ++i) {
      if ((words[i / kBits] >> (i % kBits) & 1UL) != 0) {
        cores.push_back(static_cast<int>(i));
      }
    }
    return format_ranges(cores);
  }

  Connection between(Handle one, Handle other) const {
    if (const int links = nv_links(one, other); links > 0) {
      return {ConnectionKind::kNvLink, links};
    }
    unsigned level = UINT_MAX;
    if (ancestor_(one, other, &level) != kSuccess) return {};
    return connection_of_level(level);
  }

 private:
  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(opened_, name));
    return function != nullptr;
  }

  // Returns the number of links that end at the other GPU. With an NVSwitch all
  // links of a GPU end at the switch, so all active links count.
  int nv_links(Handle one, Handle other) const {
    const std::string peer = bus_id(other);
    int direct = 0, up = 0;
    for (unsigned link = 0; link < kMaxNvLinks; ++link) {
      unsigned is_active = 0;
      if (link_state_(one, link, &is_active) != kSuccess || is_active == 0) {
        continue;
      }
      ++up;
      PciInfo end{};
      if (link_peer_(one, link, &end) == kSuccess &&
          lower(bus_id_of(end)) == lower(peer)) {
        ++direct;
      }
    }
    if (direct > 0 || up == 0) return direct;
    unsigned status = 1;
    const bool is_switched =
        p2p_(one, other, kCapsNvLink, &status) == kSuccess && status == 0;
    return is_switched ? up : 0;
  }

  void* opened_;
  bool is_started_ = false;
  Result (*init_)() = nullptr;
  Result (*shutdown_)() = nullptr;
  Result (*count_)(unsigned*) = nullptr;
  Result (*by_index_)(unsigned, Handle*) = nullptr;
  Result (*uuid_)(Handle, char*, unsigned) = nullptr;
  Result (*pci_)(Handle, PciInfo*) = nullptr;
  Result (*ancestor_)(Handle, Handle, unsigned*) = nullptr;
  Result (*link_state_)(Handle, unsigned, unsigned*) = nullptr;
  Result (*link_peer_)(Handle, unsigned, PciInfo*) = nullptr;
  Result (*p2p_)(Handle, Handle, unsigned, unsigned*) = nullptr;
  Result (*affinity_)(Handle, unsigned, unsigned long*) = nullptr;
};

}  // namespace

std::optional<Topology> nvml_topology(const std::vector<std::string>& uuids,
                                      const std::string& library,
                                      const std::string& root) {
  Nvml nvml(library);
  if (!nvml.start()) return std::nullopt;
  const auto known = nvml.devices();
  std::vector<Handle> handles;
  for (const std::string& uuid : uuids) {
    const auto found = std::ranges::find_if(
        known, [&](const auto& device) { return device.first == uuid; });
    if (found == known.end()) {
      throw DeviceError(
          {.code = ErrorCode::kNoSuchDevice,
           .what = "NVML knows no GPU " + uuid,
           .got = counted(static_cast<int64_t>(known.size()), "other")});
    }
    handles.push_back(found->second);
  }
  Topology topology;
  for (size_t i = 0; i < handles.size(); ++i) {
    topology.devices.push_back(
        {.name = fmt::format("GPU{}", i),
         .cpu_affinity = nvml.cpu_affinity(handles[i]),
         .numa_affinity = numa_node(nvml.bus_id(handles[i]), root)});
    auto& row = topology.connections.emplace_back();
    for (size_t j = 0; j < handles.size(); ++j) {
      row.push_back(i == j ? Connection{ConnectionKind::kSelf}
                           : nvml.between(handles[i], handles[j]));
    }
  }
  return topology;
}

}  // namespace lockstep::inspect
