// `lockstep run` and its protection against other processes.
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/store/client.h"
#include "lockstep/store/secret_file.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "tests/store/raw_peer.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

// Returns the local addresses, in hexadecimal, at which a process listens.
std::set<std::string> listening_of(pid_t pid) {
  std::set<std::string> sockets;
  const std::string process = "/proc/" + std::to_string(pid);
  for (const auto& entry :
       std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code ignored;
    sockets.insert(
        std::filesystem::read_symlink(entry.path(), ignored).string());
  }
  std::set<std::string> addresses;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(process + table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, peer, state, skip, inode;
      words >> number >> local >> peer >> state;
      for (int i = 0; i < 5; ++i) words >> skip;
      words >> inode;
      if (state != "0A" || !sockets.contains("socket:[" + inode + "]")) {
        continue;
      }
      addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

const std::set<std::string> kLoopbackOnly{"0100007F"};

// Two nodes on this machine. Their workers wait to be told to continue.
class RunDoor : public testing::Test {
 protected:
  RunDoor() {
    std::filesystem::create_directory(folder_.path("tmp"));
    write_text(secret_file_, secret_ + "\n");
    std::filesystem::permissions(secret_file_,
                                 std::filesystem::perms::owner_read);
  }

  Words node(int rank) const {
    return {"run",
            "--nnodes",
            "2",
            "--node-rank",
            std::to_string(rank),
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port_,
            "--secret-file",
            secret_file_,
            "--log-dir",
            folder_.path("logs"),
            "--",
            "sh",
            "-c",
            "echo pid $$ ready; while ! [ -e $GO ]; do sleep 0.05; done; "
            "echo done"};
  }

  const TemporaryFolder folder_;
  const std::string secret_ = "open sesame open sesame";
  const std::string secret_file_ = folder_.path("job.secret");
  const std::string port_ = free_port();
};

TEST_F(RunDoor, AJobGoesOnAmongStrangers) {
  const std::map<std::string, std::string> environment{
      {"GO", folder_.path("go")}};
  Program zero(node(0), environment);
  Program one(node(1), environment);
  ASSERT_TRUE(zero.wait_for_ready(1));
  ASSERT_TRUE(one.wait_for_ready(1));
  EXPECT_EQ(listening_of(zero.pid()), kLoopbackOnly);
  EXPECT_EQ(listening_of(one.pid()), std::set<std::string>{});

  const int port = std::stoi(port_);
  for (int i = 0; i < 2000; ++i) store::RawPeer(port).close();
  std::vector<store::RawPeer> silent;
  for (int i = 0; i < 300; ++i) silent.emplace_back(port);
  for (const char* greeting : {"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff"}) {
    store::RawPeer scanner(port);
    scanner.send(greeting);
    EXPECT_TRUE(scanner.is_closed());
  }
  store::ClientOptions guess;
  guess.host = "127.0.0.1";
  guess.port = port;
  guess.who = {.role = store::Role::kAgent, .run_id = "none"};
  guess.key = store::no_secret().key_of(guess.who);
  EXPECT_THROW(store::Client{guess}, CommError);
  // With the secret a process is admitted, but it can't act for another one.
  guess.key = store::read_secret_file(secret_file_).key_of(guess.who);
  store::Client rogue(guess);
  expect_problem(error_of<CommError>([&] {
                   rogue.set("lockstep/run/none/attempt 0/beat/1", "0");
                 }),
                 ErrorCode::kStoreRefused, {});

  for (Program* program : {&zero, &one}) {
    for (const char* file : {"/cmdline", "/environ"}) {
      const auto text =
          content_of("/proc/" + std::to_string(program->pid()) + file);
      EXPECT_FALSE(contains(text, secret_));
      const auto workers = pids_in(program->out());
      ASSERT_EQ(workers.size(), 1U);
      EXPECT_FALSE(contains(
          content_of("/proc/" + std::to_string(workers[0]) + file), secret_));
    }
  }
  write_text(folder_.path("go"), "");
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_FALSE(contains(zero.err() + one.err(), secret_));
  EXPECT_PRED2(contains, zero.err(), "the job's store refused 127.0.0.1:");
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_.path("logs"))) {
    struct stat facts {};
    ::stat(entry.path().c_str(), &facts);
    if (entry.is_directory()) {
      EXPECT_EQ(facts.st_mode & 077, 0U) << entry.path();
    }
  }
}

TEST(RunSecret, OthersMustNotBeAbleToReadIt) {
  const TemporaryFolder folder;
  const auto file = folder.path("secret");
  write_text(file, "open sesame open sesame");
  std::filesystem::permissions(file, std::filesystem::perms{0640});
  const auto ended =
      run_lockstep({"run", "--secret-file", file, "--", "echo", "ran"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.out, "");
  expect_problem(ended.err, ErrorCode::kBadSecret, {file, "600"});
}

TEST(RunSecret, OfOneNodeIsNobodysAffair) {
  Program job({"run", "--nproc-per-node", "2", "--", "sh", "-c",
               "echo ready; exec sleep 600"});
  ASSERT_TRUE(job.wait_for_ready(2));
  EXPECT_EQ(listening_of(job.pid()), kLoopbackOnly);
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  const auto both = run_lockstep(
      {"run", "--secret-file", "a", "--no-secret", "--", "echo", "ran"});
  EXPECT_EQ(both.code, 2);
}

}  // namespace
}  // namespace lockstep
