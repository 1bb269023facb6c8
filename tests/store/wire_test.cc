#include "lockstep/store/wire.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/store/hello.h"
#include "lockstep/store/message.h"
#include "tests/base/temporary_folder.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

TEST(FrameReader, CutsAStreamIntoFramesHoweverItComes) {
  const std::string stream = framed("one") + framed("") + framed("three");
  FrameReader reader(100);
  std::vector<std::string> found;
  for (const char byte : stream) {
    reader.add({&byte, 1});
    for (std::string body; reader.next(body);) found.push_back(body);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(reader.buffered(), 0U);
}

TEST(FrameReader, RefusesALengthAsSoonAsItIsThere) {
  FrameReader reader(10);
  std::string body;
  reader.add(framed("0123456789"));
  EXPECT_TRUE(reader.next(body));
  reader.add(std::string_view("\x0b\0\0\0", 4));
  EXPECT_THROW(reader.next(body), CommError);
  FrameReader other(10);
  other.add(std::string_view("\xff\xff\xff\xff", 4));
  EXPECT_THROW(other.next(body), CommError);
}

TEST(Message, SurvivesTheWay) {
  const Request sent{.operation = Operation::kCompareSet,
                     .keys = {std::string("k\0y", 3)},
                     .value = "new",
                     .expected = "old",
                     .number = -7,
                     .wait_ms = 3};
  const Request got = decode_request(encode(sent), {});
  EXPECT_EQ(got.operation, sent.operation);
  EXPECT_EQ(got.keys, sent.keys);
  EXPECT_EQ(got.value, "new");
  EXPECT_EQ(got.expected, "old");
  EXPECT_EQ(got.number, -7);
  EXPECT_EQ(got.wait_ms, 3U);
  const Reply reply = decode_reply(
      encode({.status = Status::kTimeout, .value = "v", .number = 5}), {});
  EXPECT_EQ(reply.status, Status::kTimeout);
  EXPECT_EQ(reply.value, "v");
  EXPECT_EQ(reply.number, 5);
}

TEST(Message, IsRefusedWhereverItIsCutOrLonger) {
  const std::string whole =
      encode({.operation = Operation::kSet, .keys = {"key"}, .value = "value"});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_request(whole.substr(0, size), {}), CommError) << size;
  }
  EXPECT_THROW(decode_request(whole + "x", {}), CommError);
  const std::string hello = encode(Hello{.identity = worker(1)});
  EXPECT_EQ(decode_hello(hello).identity.rank, 1);
  for (size_t size = 0; size < hello.size(); ++size) {
    EXPECT_THROW(decode_hello(hello.substr(0, size)), CommError) << size;
  }
}

TEST(Message, IsRefusedBeyondTheLimits) {
  const Limits limits{.key_bytes = 4, .value_bytes = 8, .keys_a_request = 2};
  const auto decode = [&](const Request& request) {
    return decode_request(encode(request), limits);
  };
  EXPECT_NO_THROW(decode({.operation = Operation::kSet, .keys = {"four"}}));
  EXPECT_THROW(decode({.operation = Operation::kSet, .keys = {"fiver"}}),
               CommError);
  EXPECT_THROW(
      decode(
          {.operation = Operation::kSet, .keys = {"a"}, .value = "123456789"}),
      CommError);
  EXPECT_THROW(decode({.operation = Operation::kWait, .keys = {"a", "b", "c"}}),
               CommError);
  EXPECT_THROW(decode({.operation = Operation::kSet}), CommError);
  EXPECT_THROW(decode({.operation = static_cast<Operation>(99)}), CommError);
  EXPECT_THROW(decode({.operation = static_cast<Operation>(0)}), CommError);
}

TEST(Hello, OfARankThatCantBeIsRefused) {
  EXPECT_THROW(decode_hello(encode(Hello{.identity = worker(2, 2)})),
               CommError);
  Identity nobody = agent();
  nobody.role = static_cast<Role>(7);
  EXPECT_THROW(decode_hello(encode(Hello{.identity = nobody})), CommError);
}

}  // namespace
}  // namespace lockstep::store
