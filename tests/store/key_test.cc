#include "lockstep/store/key.h"

#include <gtest/gtest.h>

#include "lockstep/store/identity.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

std::string hex(const Key& key) {
  std::string text;
  for (const uint8_t byte : key.bytes()) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// Computed in Python: hmac.new(bytes(range(32)), b"\3\0\0\0\0\0\0\0abc",
// "sha256").
TEST(Key, IsDerivedByHmacSha256) {
  Digest bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  const Key key(bytes);
  EXPECT_EQ(hex(derived(key, {"abc"})),
            "918d87cb49922c7e453b5d872145184584b6f6428fcfb4bb619d6622994e553f");
  EXPECT_NE(derived(key, {"ab", "c"}).bytes(),
            derived(key, {"a", "bc"}).bytes());
}

TEST(JobSecret, GivesEachWorkerAKeyForItsRankAndRoundAlone) {
  const JobSecret secret("a secret of a job");
  const auto key = [&](const Identity& who) {
    return secret.key_of(who).bytes();
  };
  EXPECT_EQ(key(worker(0)), key(worker(0)));
  EXPECT_NE(key(worker(0)), key(agent()));
  EXPECT_NE(key(worker(0)), key(worker(1)));
  EXPECT_NE(key(worker(0, 2, 0)), key(worker(0, 2, 1)));
  Identity other = worker(0);
  other.run_id = "other";
  EXPECT_NE(key(worker(0)), key(other));
  EXPECT_NE(key(agent()), JobSecret("another secret").key_of(agent()).bytes());
}

}  // namespace
}  // namespace lockstep::store
