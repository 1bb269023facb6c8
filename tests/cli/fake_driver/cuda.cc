// Replaces CUDA's driver, as far as the launcher uses it, on a machine with
// three GPUs. Built as libcuda.so.1.

extern "C" {

int cuInit(unsigned int flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}
}
