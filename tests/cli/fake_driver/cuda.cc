// Replaces CUDA's driver, as far as the launcher uses it, on a machine with
// three GPUs. Built as libcuda.so.1.

extern "C" {

int cuInit(unsigned int flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}

// No host has GPUs at these addresses.
int cuDeviceGetPCIBusId(char* address, int, int device) {
  for (const char* c = "FFFA:FF:1"; *c != '\0'; ++c) *address++ = *c;
  *address++ = static_cast<char>('0' + device);
  *address++ = '.';
  *address++ = '0';
  *address = '\0';
  return 0;
}
}
