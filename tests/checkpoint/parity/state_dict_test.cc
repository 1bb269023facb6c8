#include "lockstep/checkpoint/state_dict.h"

#include <string>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

TEST(StateDictAndPython, DigestIsTheOnePythonComputes) {
  if (!python_has("safetensors")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  const TemporaryFolder folder;
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3),
                            torch::nn::BatchNorm2d(4), torch::nn::Linear(4, 2));
  save(*net, folder.path("net.safetensors"));
  const std::string output = run_python(R"(
import hashlib, sys, safetensors.torch
digest = hashlib.sha256()
names = {'torch.float32': 'F32', 'torch.int64': 'I64'}
for name, t in sorted(safetensors.torch.load_file(sys.argv[1]).items()):
    shape = ','.join(map(str, t.shape))
    digest.update(f'{name}\0{names[str(t.dtype)]}\0{shape}\0'.encode())
    digest.update(t.numpy().tobytes())
print(digest.hexdigest(), end='')
)",
                                        folder.path("net.safetensors"));
  EXPECT_EQ(output, parameter_digest(*net));
}

}  // namespace
}  // namespace lockstep
