// Replaces libnvidia-ml.so. Reports the eight GPUs of
// examples/topologies/eight_gpus_nvlink_pairs.txt, as NVML does. With
// LOCKSTEP_FAKE_NVML=switch, it reports four GPUs with all links to a switch.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

bool is_switched() {
  const char* kind = std::getenv("LOCKSTEP_FAKE_NVML");
  return kind != nullptr && std::strcmp(kind, "switch") == 0;
}

unsigned number_of(void* device) {
  return static_cast<unsigned>(reinterpret_cast<size_t>(device)) - 1;
}

constexpr unsigned kNotFound = 6;      // NVML_ERROR_NOT_FOUND
constexpr unsigned kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = is_switched() ? 4 : 8;
  return 0;
}

// NVML's order is not CUDA's. Here it is reversed.
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  unsigned count = 0;
  nvmlDeviceGetCount_v2(&count);
  if (index >= count) return kNotFound;
  *device = reinterpret_cast<void*>(static_cast<size_t>(count - index));
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-%u", number_of(device));
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0",
                0xA0 + number_of(device));
  return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void* one, void* other,
                                        unsigned* level) {
  const bool is_same_socket = number_of(one) / 4 == number_of(other) / 4;
  *level = is_same_socket ? 40 : 50;
  return 0;
}

int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* is_active) {
  if (link >= 18) return kNotSupported;
  *is_active = link < (is_switched() ? 18U : 4U) ? 1 : 0;
  return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, PciInfo* info) {
  if (is_switched()) {
    std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:FF:00.0");
    return 0;
  }
  const size_t peer = (number_of(device) ^ 1U) + 1;
  return nvmlDeviceGetPciInfo_v3(reinterpret_cast<void*>(peer), info);
}

int nvmlDeviceGetP2PStatus(void*, void*, unsigned, unsigned* status) {
  *status = is_switched() ? 0 : 5;
  return 0;
}

int nvmlDeviceGetCpuAffinity(void* device, unsigned size, unsigned long* set) {
  std::memset(set, 0, size * sizeof(*set));
  // The sockets have 32 cores each.
  set[0] = number_of(device) < 4 ? 0xFFFFFFFFUL : 0xFFFFFFFF00000000UL;
  return 0;
}

}  // extern "C"
