#include "lockstep/base/checksum.h"

#include <array>
#include <cstdio>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

// The output of xxh128sum, from the package.
TEST(Checksum, IsThatOfXxh128sum) {
  EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Checksum, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  Checksum pieces;
  for (size_t at = 0; at < text.size(); at += 37) {
    pieces.add(std::string_view(text).substr(at, 37));
  }
  EXPECT_EQ(pieces.hex(), checksum_of(text));
}

// The vectors of RFC 9923, appendix C, for 64 bits.
TEST(Fnv1a, GivesTheVectorsOfTheStandard) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325U);
  Fnv1a one;
  one.add("a");
  EXPECT_EQ(one.value(), 0xaf63dc4c8601ec8cU);
  Fnv1a pieces;
  pieces.add("foo");
  pieces.add("bar");
  EXPECT_EQ(pieces.value(), 0x85944171f73967e8U);
}

std::string digest(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.hex();
}

TEST(Sha256, AgreesWithTheVectorsOfTheStandard) {
  // FIPS 180-4, examples of NIST.
  EXPECT_EQ(digest(""),
            "e3b0c44298fc1c149afbf4c8996fb924"
            "27ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"),
            "ba7816bf8f01cfea414140de5dae2223"
            "b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039"
            "a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67"
            "f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += static_cast<char>(random());
  Sha256 hash;
  for (size_t at = 0; at < text.size();) {
    const size_t size = random() % 200;
    hash.add(std::string_view(text).substr(at, size));
    at += size;
  }
  EXPECT_EQ(hash.hex(), digest(text));
}

TEST(Sha256, AgreesWithPython) {
  const TemporaryFolder folder;
  std::string bytes;
  for (uint32_t i = 0; i < 123'457; ++i) bytes += static_cast<char>(i * i >> 3);
  write_text(folder.path("f"), bytes);
  const std::string command =
      std::string(LOCKSTEP_TEST_PYTHON) +
      " -c 'import hashlib,sys;"
      "print(hashlib.sha256(open(sys.argv[1],\"rb\").read()).hexdigest())' " +
      folder.path("f");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(command.c_str(), "r"), &::pclose);
  ASSERT_TRUE(pipe);
  std::array<char, 80> line{};
  ASSERT_NE(std::fgets(line.data(), line.size(), pipe.get()), nullptr)
      << "python said nothing: " << command;
  EXPECT_EQ(digest(bytes) + "\n", line.data());
}

TEST(Sha256, EndsWithHex) {
  Sha256 hash;
  hash.hex();
  EXPECT_THROW(hash.hex(), InvalidArgument);
  EXPECT_THROW(hash.add("more"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
