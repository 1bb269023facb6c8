#include "lockstep/store/handshake.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// Computed in Python: hmac.new(bytes(range(32)), b"\3\0\0\0\0\0\0\0abc",
// "sha256").
TEST(Mac, IsHmacSha256) {
  Digest bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  const Mac mac{Key(bytes)};
  const std::string expected =
      "918d87cb49922c7e453b5d872145184584b6f6428fcfb4bb619d6622994e553f";
  EXPECT_EQ(hex(mac.of({"abc"})), expected);
  EXPECT_EQ(hex(mac.of({"abc"})), expected) << "it must begin anew";
  EXPECT_NE(mac.of({"ab", "c"}), mac.of({"a", "bc"}));
  EXPECT_TRUE(is_same(mac.of({"abc"}), as_text(mac.of({"abc"}))));
  EXPECT_FALSE(is_same(mac.of({"abc"}), as_text(mac.of({"abd"}))));
  EXPECT_FALSE(is_same(mac.of({"abc"}), ""));
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

// Both sides of a handshake.
struct Pair {
  Pair(const Key& client_key, const Key& server_key)
      : client(client_key, hello, challenge),
        server(server_key, hello, challenge) {}
  std::string hello =
      encode(Hello{.identity = agent(), .nonce = random_nonce()});
  std::string challenge = encode(Challenge{.nonce = random_nonce()});
  Handshake client, server;
};

TEST(Handshake, ProvesEachSideToTheOther) {
  const Key key(random_nonce());
  const Pair pair(key, key);
  EXPECT_TRUE(pair.server.is_proof(pair.client.proof()));
  const auto reply = pair.client.decode_admission_reply(pair.server.encode(
      {.admission = Admission::kStaleRound, .reason = "too old"}));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->admission, Admission::kStaleRound);
  EXPECT_EQ(reply->reason, "too old");
}

TEST(Handshake, FailsWithAnotherKeyOnEitherSide) {
  const Pair pair{Key(random_nonce()), Key(random_nonce())};
  EXPECT_FALSE(pair.server.is_proof(pair.client.proof()));
  EXPECT_FALSE(
      pair.client.decode_admission_reply(pair.server.encode(AdmissionReply{})));
  EXPECT_FALSE(pair.client.decode_admission_reply(encode_wrong_proof()));
}

TEST(Handshake, FailsForAProofOfAnotherConnection) {
  const Key key(random_nonce());
  const Pair first(key, key), second(key, key);
  EXPECT_FALSE(second.server.is_proof(first.client.proof()));
  EXPECT_FALSE(second.client.decode_admission_reply(
      first.server.encode(AdmissionReply{})));
  // A proof can't be sent back either.
  EXPECT_FALSE(first.client.decode_admission_reply(first.client.proof() +
                                                   std::string(1, '\0')));
}

TEST(Handshake, FailsForAReplyThatWasAltered) {
  const Key key(random_nonce());
  const Pair pair(key, key);
  std::string message = pair.server.encode({.admission = Admission::kFull});
  message[sizeof(Digest)] = 0;  // changed to "welcome"
  EXPECT_FALSE(pair.client.decode_admission_reply(message));
}

// Returns the body of a frame.
std::string body_of(const std::string& frame) { return frame.substr(4); }

TEST(Session, TakesEachMessageOnceAndInOrder) {
  const Key key(random_nonce());
  const Pair pair(key, key);
  Session client = pair.client.client_session();
  Session server = pair.server.server_session();
  const std::string one = body_of(client.seal("one"));
  const std::string two = body_of(client.seal("two"));
  EXPECT_THROW(server.open(two), CommError);
  EXPECT_EQ(server.open(one), "one");
  EXPECT_THROW(server.open(one), CommError) << "replayed";
  EXPECT_EQ(server.open(two), "two");
  EXPECT_THROW(client.open(one), CommError) << "sent back";
  EXPECT_EQ(client.open(body_of(server.seal("yes"))), "yes");
}

TEST(Session, RefusesWhatWasAltered) {
  const Key key(random_nonce());
  const Pair pair(key, key);
  const std::string sent = body_of(pair.client.client_session().seal("value"));
  for (size_t i = 0; i < sent.size(); ++i) {
    std::string altered = sent;
    altered[i] = static_cast<char>(altered[i] ^ 1);
    Session server = pair.server.server_session();
    EXPECT_THROW(server.open(altered), CommError) << i;
  }
  Session server = pair.server.server_session();
  EXPECT_THROW(server.open(sent.substr(0, 10)), CommError);
  EXPECT_THROW(server.open(sent + "x"), CommError);
}

}  // namespace
}  // namespace lockstep::store
