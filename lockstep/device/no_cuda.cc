#include "lockstep/device/cuda.h"
