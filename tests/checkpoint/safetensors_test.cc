#include "lockstep/checkpoint/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/every_type.h"

namespace lockstep {
namespace {

std::string header_length(const std::string& file) { return file.substr(0, 8); }

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
      read_safetensors(folder.path("bad"));  // may miss a changed name
    } catch (const CheckpointError&) {
    }
  }
}

// Users of PyTorch have such files. Before version 1.6, it wrote pickles.
}  // namespace
}  // namespace lockstep
