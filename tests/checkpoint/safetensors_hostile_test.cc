#include <algorithm>
#include <cstring>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

std::string file_bytes(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

struct Hostile {
  const char* name;
  std::string file;
  std::vector<std::string> says;
};

void PrintTo(const Hostile& hostile, std::ostream* out) {
  *out << hostile.name;
}

std::string one(const std::string& dtype, const std::string& shape,
                const std::string& offsets, size_t bytes) {
  return file_bytes("{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
                        ",\"data_offsets\":" + offsets + "}}",
                    std::string(bytes, '\1'));
}

std::string two(const std::string& first, const std::string& second,
                size_t bytes) {
  return file_bytes(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
          R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
      std::string(bytes, '\1'));
}

std::vector<Hostile> hostile_files() {
  std::string many_dimensions = "[1";
  for (int i = 0; i < 64; ++i) many_dimensions += ",1";
  many_dimensions += "]";
  std::string huge = file_bytes("{}", "");
  huge[7] = '\x7f';
  return {
      {"Empty", "", {"too short", "0 bytes"}},
      {"SevenBytes", "1234567", {"too short", "7 bytes"}},
      {"HugeHeader", huge, {"length can't be right", "100000000"}},
      {"CutHeader", file_bytes("{}", "").substr(0, 9), {"within its header"}},
      {"NoHeader", file_bytes("", ""), {"not JSON"}},
      {"NotJson", file_bytes("{\"w\":", ""), {"not JSON"}},
      {"NotUtf8", file_bytes("{\"\xff\":1}", ""), {"not JSON"}},
      {"NotUtf8InALongName",
       file_bytes("{\"" + std::string(9000, '\xe9'), ""),
       {"not JSON"}},
      {"TextAfterAZero",
       file_bytes(std::string("{}\0{}", 5), ""),
       {"not JSON", "a zero at byte 2"}},
      {"SpaceBeforeTheHeader", file_bytes(" {}", ""), {"something before"}},
      {"ByteOrderMark", file_bytes("\xef\xbb\xbf{}", ""), {"something before"}},
      {"NotAnObject", file_bytes("[]", ""), {"expected a JSON object"}},
      {"DeepNesting", file_bytes(std::string(100'000, '['), ""), {"too deep"}},
      {"SameTensorTwice",
       file_bytes(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                  ""),
       {"\"w\" twice"}},
      {"SameKeyTwice",
       file_bytes(R"({"w":{"dtype":"U8","shape":[0],"dtype":"I8",)"
                  R"("data_offsets":[0,0]}})",
                  ""),
       {"\"dtype\" twice", "within \"w\""}},
      {"MetadataOfNumbers",
       file_bytes(R"({"__metadata__":{"a":1}})", ""),
       {"__metadata__", "\"a\"", "a string"}},
      {"TensorIsANumber", file_bytes(R"({"w":1})", ""), {"\"w\"", "object"}},
      {"UnknownKey", file_bytes(R"({"w":{"extra":1}})", ""), {"\"extra\""}},
      {"NoShape", file_bytes(R"({"w":{"dtype":"U8"}})", ""), {"no shape"}},
      {"UnknownDtype",
       one("\"F31\"", "[4]", "[0,4]", 4),
       {"\"w\"", "dtype", "\"F31\""}},
      {"DtypeIsANumber", one("7", "[4]", "[0,4]", 4), {"dtype", "got 7"}},
      {"NegativeShape",
       one("\"U8\"", "[-4]", "[0,4]", 4),
       {"\"w\"", "shape", "got -4"}},
      {"FractionalShape", one("\"U8\"", "[4.5]", "[0,4]", 4), {"got 4.5"}},
      {"ShapeIsAString", one("\"U8\"", "\"4\"", "[0,4]", 4), {"a list"}},
      {"ShapeOverflows",
       one("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0),
       {"\"w\"", "overflows"}},
      {"ShapeOverflowsToZero",
       one("\"U8\"", "[9223372036854775807,4]", "[0,0]", 0),
       {"overflows"}},
      {"StridesOverflowBehindAZero",
       one("\"U8\"", "[0,4611686018427387904,4]", "[0,0]", 0),
       {"\"w\"", "overflows"}},
      {"ManyDimensions",
       one("\"U8\"", many_dimensions, "[0,1]", 1),
       {"more than 64", "\"w\""}},
      {"NegativeOffset", one("\"U8\"", "[4]", "[-4,0]", 4), {"data_offsets"}},
      {"OneOffset", one("\"U8\"", "[4]", "[4]", 4), {"data_offsets"}},
      {"OffsetsReversed", one("\"U8\"", "[4]", "[4,0]", 4), {"[4,0]"}},
      {"SizeMismatch",
       one("\"F32\"", "[4]", "[0,4]", 4),
       {"\"w\"", "16 bytes", "got 4 bytes"}},
      {"BeyondTheEnd",
       one("\"U8\"", "[9]", "[0,9]", 4),
       {"\"w\"", "truncated", "got 4"}},
      {"Overlap", two("[0,4]", "[2,6]", 6), {"\"b\"", "overlaps"}},
      {"SameBytes", two("[0,4]", "[0,4]", 4), {"overlaps"}},
      {"Hole", two("[0,4]", "[6,10]", 10), {"\"b\"", "hole", "byte 4"}},
      {"HoleAtTheStart", one("\"U8\"", "[4]", "[2,6]", 6), {"hole"}},
      {"BytesLeftOver",
       one("\"U8\"", "[4]", "[0,4]", 6),
       {"no tensor accounts for"}},
      {"BoolOfSeven",
       file_bytes(R"({"w":{"dtype":"BOOL","shape":[1],)"
                  R"("data_offsets":[0,1]}})",
                  "\7"),
       {"BOOL"}},
      {"BoolOfSevenInANameOfEscapes",
       file_bytes("{\"\\u001b[2J" + std::string(9000, 'x') +
                      R"(":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})",
                  "\7"),
       {"BOOL", "\\u001b[2Jxxx"}},
  };
}

class HostileFile : public testing::TestWithParam<Hostile> {};

TEST_P(HostileFile, IsRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = folder.path("hostile");
  write_text(path, GetParam().file);
  const std::string message =
      error_of<CheckpointError>([&] { read_safetensors(path); });
  EXPECT_PRED2(contains, message, path);
  for (const std::string& part : GetParam().says) {
    EXPECT_PRED2(contains, message, part);
  }
  EXPECT_LT(message.size(), 600u);
  EXPECT_TRUE(
      std::all_of(message.begin(), message.end(),
                  [](char letter) { return letter >= ' ' && letter <= '~'; }))
      << "no letters for a terminal: " << message;
}

INSTANTIATE_TEST_SUITE_P(SafeTensors, HostileFile,
                         testing::ValuesIn(hostile_files()),
                         [](const auto& info) { return info.param.name; });

TEST(SafeTensors, RefuseAHeaderOfManyEntriesInNoTime) {
  const TemporaryFolder folder;
  std::string header = "{";
  for (int i = 0; i < 300'000; ++i)
    header += "\"" + std::to_string(i) + "\":{},";
  header.back() = '}';
  write_text(folder.path("a"), file_bytes(header, ""));
  const Stopwatch stopwatch;
  EXPECT_THROW(read_safetensors(folder.path("a")), CheckpointError);
  // If each entry were compared with all others, this would take half an hour.
  EXPECT_LT(stopwatch.seconds(), 60);
}

// Refuses memory like a machine with less memory than the size of a sparse
// file.
class RefusingAllocator : public c10::Allocator {
 public:
  RefusingAllocator() { c10::SetCPUAllocator(this, kPriority); }
  ~RefusingAllocator() override { c10::SetCPUAllocator(usual_, kPriority); }
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes == 0, "you tried to allocate ", bytes, " bytes");
    return {nullptr, at::kCPU};
  }
  void copy_data(void* into, const void* from, size_t bytes) const override {
    default_copy_data(into, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 100;  // as in device/memory.cc
  c10::Allocator* usual_ = c10::GetCPUAllocator();
};

TEST(SafeTensors, NameTheTensorThatThereIsNoMemoryFor) {
  const TemporaryFolder folder;
  write_text(folder.path("a"), one("\"U8\"", "[4]", "[0,4]", 4));
  const std::string message = error_of<CheckpointError>([&] {
    const RefusingAllocator allocator;
    read_safetensors(folder.path("a"));
  });
  expect_problem(message, ErrorCode::kOutOfMemory,
                 {folder.path("a"), "\"w\"", "4 bytes"});
}

}  // namespace
}  // namespace lockstep
