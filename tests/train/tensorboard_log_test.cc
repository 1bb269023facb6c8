#include "lockstep/train/record/tensorboard_log.h"

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::training {
namespace {

template <class T>
T take(std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.erase(0, sizeof(T));
  return value;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

/// The data of the records of the only file in `folder`.
std::vector<std::string> records_of(const std::string& folder) {
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_TRUE(bytes.empty());
    bytes = content_of(entry.path().string());
  }
  std::vector<std::string> records;
  while (!bytes.empty()) {
    const std::string length = bytes.substr(0, 8);
    const auto size = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), masked(length));
    records.push_back(bytes.substr(0, size));
    bytes.erase(0, size);
    EXPECT_EQ(take<uint32_t>(bytes), masked(records.back()));
  }
  return records;
}

/// Without the wall time: tag 0x09 and eight bytes.
std::string after_time(const std::string& record) {
  EXPECT_EQ(record[0], '\x09');
  return record.substr(9);
}

std::string text(std::initializer_list<int> bytes) {
  std::string result;
  for (const int byte : bytes) result += static_cast<char>(byte);
  return result;
}

// The check value of CRC-32C in the catalogue of parametrised CRC algorithms,
// and vectors of RFC 3720, B.4.
TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aa);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43);
}

TEST(TensorBoardLog, WritesEventsOfScalars) {
  const TemporaryFolder folder;
  TensorBoardLog log(folder.path("runs/first"));
  log.before_step({.step = 0});
  log.after_step({.step = 1, .lr = 0.5}, {{"loss", 2}});
  log.after_evaluation({.step = 300}, {.metrics = {{"loss", 1.5}}});
  const auto records = records_of(folder.path("runs/first"));
  ASSERT_EQ(records.size(), 4u);
  // step 0, file_version
  EXPECT_EQ(after_time(records[0]),
            text({0x10, 0, 0x1a, 13}) + "brain.Event:2");
  // step 1, summary { value { tag, simple_value } }; 2.0f is 0x40000000.
  EXPECT_EQ(after_time(records[1]),
            text({0x10, 1, 0x2a, 19, 0x0a, 17, 0x0a, 10}) + "train/loss" +
                text({0x15, 0, 0, 0, 0x40}));
  EXPECT_NE(records[2].find("step_ms"), std::string::npos);
  // 300 is a varint of two bytes; 1.5f is 0x3fc00000.
  EXPECT_EQ(after_time(records[3]),
            text({0x10, 0xac, 2, 0x2a, 18, 0x0a, 16, 0x0a, 9}) + "test/loss" +
                text({0x15, 0, 0, 0xc0, 0x3f}));
}

// Events of other files from step 5 on are dropped by TensorBoard.
TEST(TensorBoardLog, BeginsARunThatGoesOnWithASessionLog) {
  const TemporaryFolder folder;
  TensorBoardLog log(folder.path("runs"));
  log.before_step({.step = 4});
  log.after_step({.step = 5}, {{"loss", 2}});
  const auto records = records_of(folder.path("runs"));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(after_time(records[1]), text({0x10, 5, 0x3a, 2, 0x08, 1}));
}

}  // namespace
}  // namespace lockstep::training
