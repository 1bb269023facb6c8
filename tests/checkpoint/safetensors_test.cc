#include "lockstep/checkpoint/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

std::string header_length(const std::string& file) { return file.substr(0, 8); }

SafeTensors every_type() {
  SafeTensors content;
  content.metadata = {{"format", "pt"}, {"note", "a \"quoted\" \n line"}};
  for (const auto dtype :
       {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32,
        torch::kInt64, torch::kFloat16, torch::kBFloat16, torch::kFloat32,
        torch::kFloat64}) {
    content.tensors.emplace_back(
        std::string("of ") + c10::toString(dtype),
        torch::arange(15).remainder(2).reshape({3, 5}).to(dtype));
  }
  content.tensors.emplace_back("scalar", torch::tensor(-2.5));
  content.tensors.emplace_back("empty", torch::empty({0, 7}));
  return content;
}

TEST(SafeTensors, ComeBackInOrderWithTypesShapesAndBytes) {
  const TemporaryFolder folder;
  const SafeTensors written = every_type();
  write_safetensors(folder.path("a.safetensors"), written);
  const SafeTensors read = read_safetensors(folder.path("a.safetensors"));
  EXPECT_EQ(read.metadata, written.metadata);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (size_t i = 0; i < read.tensors.size(); ++i) {
    EXPECT_EQ(read.tensors[i].first, written.tensors[i].first);
    EXPECT_EQ(read.tensors[i].second.dtype(),
              written.tensors[i].second.dtype());
    EXPECT_TRUE(read.tensors[i].second.equal(written.tensors[i].second));
  }
}

TEST(SafeTensors, TakeTensorsOfAnyStrides) {
  const TemporaryFolder folder;
  const torch::Tensor image =
      torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const torch::Tensor slice = torch::randn({8, 8}).t().slice(1, 1, 7, 2);
  write_safetensors(
      folder.path("a"),
      {.tensors = {{"image", image}, {"slice", slice}}, .metadata = {}});
  const SafeTensors read = read_safetensors(folder.path("a"));
  EXPECT_TRUE(read.tensors[0].second.equal(image));
  EXPECT_TRUE(read.tensors[1].second.equal(slice));
}

TEST(SafeTensors, PadTheHeaderToEightBytes) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "ab", "abc", "abcdefgh"}) {
    write_safetensors(folder.path("a"),
                      {.tensors = {{name, torch::ones(3)}}, .metadata = {}});
    const std::string bytes = content_of(folder.path("a"));
    uint64_t length = 0;
    std::memcpy(&length, header_length(bytes).data(), sizeof length);
    EXPECT_EQ(length % 8, 0u);
    EXPECT_EQ(bytes.size(), 8 + length + 12);
  }
}

TEST(SafeTensors, LeaveTheOldFileWhenATensorCannotBeWritten) {
  const TemporaryFolder folder;
  write_text(folder.path("a"), "old");
  const auto write = [&](const torch::Tensor& tensor, const char* name) {
    return error_of<CheckpointError>([&] {
      write_safetensors(
          folder.path("a"),
          {.tensors = {{"x", torch::ones(1)}, {name, tensor}}, .metadata = {}});
    });
  };
  EXPECT_PRED2(contains, write(torch::ones(2, torch::kComplexFloat), "y"),
               "ComplexFloat");
  EXPECT_PRED2(contains, write(torch::eye(2).to_sparse(), "y"), "dense");
  EXPECT_PRED2(contains, write(torch::ones(1), "x"), "\"x\"");
  EXPECT_PRED2(contains, write(torch::ones(1), "__metadata__"), "reserved");
  EXPECT_PRED2(contains, write(torch::ones(1), "\xff"), "UTF-8");
  EXPECT_EQ(content_of(folder.path("a")), "old");
}

TEST(SafeTensors, RefuseWhatIsNoFile) {
  const TemporaryFolder folder;
  expect_problem(error_of<CheckpointError>(
                     [&] { read_safetensors(folder.path("missing")); }),
                 ErrorCode::kFileAccess,
                 {folder.path("missing"), "No such file"});
  expect_problem(
      error_of<CheckpointError>([&] { read_safetensors(folder.path()); }),
      ErrorCode::kFileAccess, {folder.path()});
}

TEST(SafeTensors, SurviveACutAnywhereAndAnyFlippedHeaderByte) {
  const TemporaryFolder folder;
  write_safetensors(folder.path("a"), every_type());
  const std::string good = content_of(folder.path("a"));
  for (size_t length = 0; length < good.size(); length += 7) {
    write_text(folder.path("cut"), good.substr(0, length));
    EXPECT_THROW(read_safetensors(folder.path("cut")), CheckpointError)
        << length;
  }
  for (size_t i = 0; i < 8 + 400; ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 7)));
    write_text(folder.path("bad"), bad);
    try {
      read_safetensors(folder.path("bad"));  // a name may change unnoticed
    } catch (const CheckpointError&) {
    }
  }
}

TEST(ParitySafeTensors, AreReadByThePythonPackage) {
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

TEST(ParitySafeTensors, ReadWhatThePythonPackageWrote) {
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

// What people have who come from PyTorch. Before 1.6, it wrote pickles.
TEST(SafeTensors, SaysOfAFileOfTorchSaveWhatItIsAndHowToConvertIt) {
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
    expect_problem(message, ErrorCode::kMalformedSafetensors,
                   {path, "torch.save", form});
    // The advice itself, up to the code, as Python takes it.
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
