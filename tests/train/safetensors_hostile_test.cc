#include <cstring>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/train/safetensors.h"
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
}

INSTANTIATE_TEST_SUITE_P(SafeTensors, HostileFile,
                         testing::ValuesIn(hostile_files()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
