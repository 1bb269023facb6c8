#include "lockstep/store/secret_file.h"

#include <filesystem>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/scoped_environment.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

using std::filesystem::perms;

Digest key(const JobSecret& secret) { return secret.key_of(agent()).bytes(); }

void write_secret(const std::string& path, const std::string& text,
                  perms mode = perms::owner_read | perms::owner_write) {
  write_text(path, text);
  std::filesystem::permissions(path, mode);
}

std::string refusal(const std::string& path) {
  return error_of<InvalidArgument>([&] { read_secret_file(path); });
}

TEST(SecretFile, IsReadWithoutItsLinesEnd) {
  const TemporaryFolder folder;
  const std::string text(16, 's');
  write_secret(folder.path("a"), text);
  write_secret(folder.path("b"), text + "\r\n");
  EXPECT_EQ(key(read_secret_file(folder.path("a"))), key(JobSecret(text)));
  EXPECT_EQ(key(read_secret_file(folder.path("b"))), key(JobSecret(text)));
}

TEST(SecretFile, ThatOthersCanReadIsRefusedWithTheCure) {
  const TemporaryFolder folder;
  const auto path = folder.path("secret");
  for (const perms others : {perms::group_read, perms::others_read,
                             perms::group_write, perms::others_exec}) {
    write_secret(path, std::string(32, 's'), perms::owner_all | others);
    EXPECT_TRUE(is_error(refusal(path), ErrorCode::kBadSecret,
                         {"chmod 600 '" + path + "'"}));
  }
}

TEST(SecretFile, MustHoldASecret) {
  const TemporaryFolder folder;
  const auto path = folder.path("secret");
  for (const size_t size : {0, 15, 4097, 100'000}) {
    write_secret(path, std::string(size, 's'));
    EXPECT_TRUE(is_error(refusal(path), ErrorCode::kBadSecret,
                         {path, "16", "4096", "openssl rand"}))
        << size;
  }
  write_secret(path, std::string(15, 's') + "\n");
  EXPECT_TRUE(is_error(refusal(path), ErrorCode::kBadSecret, {path, "15"}));
  EXPECT_EQ(refusal(path).find("sss"), std::string::npos) << "the secret";
  EXPECT_TRUE(is_error(refusal(folder.path("none")), ErrorCode::kFileAccess,
                       {folder.path("none")}));
  EXPECT_TRUE(is_error(refusal(folder.path()), ErrorCode::kFileAccess,
                       {folder.path(), "--secret-fd"}));
}

TEST(SecretFile, MayBeAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = std::string(20, 's') + "\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), 21);
  ::close(ends[1]);
  EXPECT_EQ(key(read_secret_fd(ends[0])), key(JobSecret(std::string(20, 's'))));
  EXPECT_THROW(read_secret_fd(ends[0]), InvalidArgument) << "it is closed";
}

TEST(SecretFile, OnLoopbackIsOneOfTheUsersOwn) {
  const Digest first = key(loopback_secret());
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] { EXPECT_EQ(key(loopback_secret()), first); });
  }
  for (auto& other : others) other.join();
  EXPECT_NE(first, key(no_secret()));
  const ScopedEnvironment none({});
  EXPECT_EQ(key(shared_secret({}, "localhost")), first);
  EXPECT_EQ(key(shared_secret({}, "127.0.0.1")), first);
}

TEST(SecretFile, IsAskedForBeyondLoopback) {
  const TemporaryFolder folder;
  write_secret(folder.path("secret"), std::string(32, 's'));
  const Digest ours = key(JobSecret(std::string(32, 's')));
  const auto error = error_of<InvalidArgument>([] {
    const ScopedEnvironment none({});
    shared_secret({}, "192.0.2.1");
  });
  EXPECT_TRUE(is_error(
      error, ErrorCode::kBadSecret,
      {"'192.0.2.1'", "(umask 077; openssl rand -hex 32", "--no-secret"}));
  EXPECT_EQ(key(shared_secret({.file = folder.path("secret")}, "192.0.2.1")),
            ours);
  EXPECT_EQ(key(shared_secret({.is_none = true}, "192.0.2.1")),
            key(no_secret()));
  {
    const ScopedEnvironment file(
        {{"LOCKSTEP_SECRET_FILE", folder.path("secret")}});
    EXPECT_EQ(key(shared_secret({}, "192.0.2.1")), ours);
    EXPECT_EQ(key(shared_secret({}, "localhost")), ours);
  }
  const ScopedEnvironment none({{"LOCKSTEP_NO_SECRET", "1"}});
  EXPECT_EQ(key(shared_secret({}, "192.0.2.1")), key(no_secret()));
}

}  // namespace
}  // namespace lockstep::store
