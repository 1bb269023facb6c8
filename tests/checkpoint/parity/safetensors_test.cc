#include "lockstep/checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/every_type.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

TEST(SafeTensorsAndPython, AreReadByThePythonPackage) {
  if (!python_has("safetensors")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  const TemporaryFolder folder;
  write_safetensors(folder.path("a"), every_type());
  const std::string output = run_python(R"(
import sys, torch, safetensors.torch
from safetensors import safe_open
tensors = safetensors.torch.load_file(sys.argv[1])
ones = (torch.arange(15) % 2).reshape(3, 5)
typed = {n: t for n, t in tensors.items() if n.startswith('of ')}
assert len(typed) == 10 and len({t.dtype for t in typed.values()}) == 10
for name, tensor in typed.items():
    assert torch.equal(tensor, ones.to(tensor.dtype)), name
assert tensors['scalar'].shape == () and tensors['scalar'].item() == -2.5
assert tensors['empty'].shape == (0, 7)
with safe_open(sys.argv[1], 'pt') as file:
    print(file.metadata()['note'])
)",
                                        folder.path("a"));
  EXPECT_EQ(output, "a \"quoted\" \n line\n");
}

TEST(SafeTensorsAndPython, ReadWhatThePythonPackageWrote) {
  if (!python_has("safetensors")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  const TemporaryFolder folder;
  run_python(R"(
import sys, torch, safetensors.torch
types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
         torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64]
tensors = {str(t): torch.arange(6).reshape(2, 3).remainder(2).to(t)
           for t in types}
tensors['scalar'] = torch.tensor(3, dtype=torch.int64)
tensors['empty'] = torch.empty(2, 0)
safetensors.torch.save_file(tensors, sys.argv[1], {'format': 'pt'})
)",
             folder.path("a"));
  const SafeTensors read = read_safetensors(folder.path("a"));
  EXPECT_EQ(read.metadata.at("format"), "pt");
  ASSERT_EQ(read.tensors.size(), 12u);
  for (const auto& [name, tensor] : read.tensors) {
    if (name == "scalar") {
      EXPECT_EQ(tensor.item<int64_t>(), 3);
    } else if (name == "empty") {
      EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{2, 0}));
    } else {
      const auto expected =
          torch::arange(6).reshape({2, 3}).remainder(2).to(tensor.dtype());
      EXPECT_TRUE(tensor.equal(expected)) << name;
    }
  }
}

TEST(FuzzCorpusAndPython, WhatThePythonPackageRefusesIsRefused) {
  if (!python_has("safetensors")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  std::istringstream refused(run_python(R"(
import pathlib, sys, safetensors
for path in pathlib.Path(sys.argv[1]).rglob('*'):
    if path.is_file():
        try:
            safetensors.deserialize(path.read_bytes())
        except Exception:
            print(path)
)",
                                        LOCKSTEP_SOURCE_DIR
                                        "/tests/fuzz/corpus/safetensors"));
  size_t count = 0;
  for (std::string file; std::getline(refused, file); ++count) {
    EXPECT_THROW(read_safetensors(file), CheckpointError) << file;
  }
  EXPECT_GT(count, 50u);
}

TEST(FilesOfTorchSave, AreRefusedWithAWayToConvertThem) {
  if (!python_has("safetensors")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  const TemporaryFolder folder;
  run_python(R"(
import sys, torch
state = torch.nn.Linear(2, 3).state_dict()
torch.save(state, sys.argv[1] + '/zip.pt')
torch.save(state, sys.argv[1] + '/pickle.pt',
           _use_new_zipfile_serialization=False)
)",
             folder.path());
  for (const std::string form : {"zip", "pickle"}) {
    const std::string path = folder.path(form + ".pt");
    const auto message =
        error_of<CheckpointError>([&] { read_safetensors(path); });
    expect_problem(message, ErrorCode::kMalformedData,
                   {path, "torch.save", form});
    // The advice itself, up to the code, as Python receives it.
    const auto begin = message.find("from safetensors.torch");
    ASSERT_NE(begin, std::string::npos) << message;
    const std::string advice =
        message.substr(begin, message.rfind(" [") - begin);
    run_python("import os, sys, torch; os.chdir(sys.argv[1])\n" + advice,
               folder.path());
    EXPECT_EQ(read_safetensors(folder.path("model.safetensors")).tensors.size(),
              2u);
  }
}

}  // namespace
}  // namespace lockstep
