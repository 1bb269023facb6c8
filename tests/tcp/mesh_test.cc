#include "lockstep/tcp/mesh.h"

#include <atomic>

#include <gtest/gtest.h>

#include "lockstep/tcp/collectives.h"
#include "tests/base/temporary_folder.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::mesh_test {
namespace {

using transport::Operation;

constexpr std::chrono::milliseconds kTimeout{60'000};

void call_barrier(Mesh& mesh, std::chrono::milliseconds timeout = kTimeout) {
  mesh.begin({.operation = Operation::kBarrier}, timeout);
  barrier(mesh);
}

TEST(Mesh, NamesTheCallsOfRanksThatDoNotAgree) {
  const auto errors = run_mesh(3, [](Mesh& mesh) {
    call_barrier(mesh);
    if (mesh.rank() != 1) return call_barrier(mesh);
    std::vector<std::byte> data(100);
    mesh.begin({.operation = Operation::kBroadcast, .root = 1, .elements = 100},
               kTimeout);
    broadcast(mesh, data, 1);
    call_barrier(mesh);
  });
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_TRUE(contains(errors[rank], "[calls-differ]") ||
                contains(errors[rank], "[collective-failed]"))
        << errors[rank];
  }
  EXPECT_TRUE(contains(errors[0], "[calls-differ]") ||
              contains(errors[2], "[calls-differ]"));
  EXPECT_TRUE(contains(errors[0], "broadcast") ||
              contains(errors[2], "broadcast"));
  EXPECT_TRUE(contains(errors[0], "barrier") || contains(errors[2], "barrier"));
}

// Rank 1 ends. Nobody waits for the timeout, and the error names rank 1.
TEST(Mesh, ARankThatEndsIsNamedAtOnce) {
  const auto errors = run_mesh(3, [](Mesh& mesh) {
    call_barrier(mesh);
    if (mesh.rank() != 1) call_barrier(mesh);
  });
  EXPECT_EQ(errors[1], "");
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_TRUE(contains(errors[rank], "[collective-failed]")) << errors[rank];
  }
  EXPECT_TRUE(contains(errors[0], "rank 1 (host a) is gone") ||
              contains(errors[2], "rank 1 (host a) is gone"))
      << errors[0] << errors[2];
}

TEST(Mesh, ARankThatStallsIsNamedAtTheTimeout) {
  std::atomic<int> ended = 0;
  const auto errors = run_mesh(3, [&](Mesh& mesh) {
    if (mesh.rank() == 2) {
      while (ended < 2) std::this_thread::yield();
      return;
    }
    try {
      call_barrier(mesh, std::chrono::milliseconds(200));
    } catch (...) {
      ++ended;
      throw;
    }
  });
  EXPECT_EQ(errors[2], "");
  EXPECT_TRUE(contains(errors[0], "timed out") ||
              contains(errors[1], "timed out"));
  EXPECT_TRUE(contains(errors[0], "rank 2") || contains(errors[1], "rank 2"));
}

TEST(Mesh, AbortEndsTheWaitsOfAllAndItsReasonIsTold) {
  const auto errors = run_mesh(2, [](Mesh& mesh) {
    if (mesh.rank() == 1) {
      mesh.abort("the loss is not finite");
      return call_barrier(mesh);
    }
    call_barrier(mesh);
  });
  EXPECT_TRUE(contains(errors[0], "rank 1 (host a) is gone")) << errors[0];
  EXPECT_TRUE(contains(errors[1], "the loss is not finite")) << errors[1];
}

TEST(Mesh, CanNotBeUsedAfterAnError) {
  const auto errors = run_mesh(2, [](Mesh& mesh) {
    if (mesh.rank() == 1) return;
    EXPECT_THROW(call_barrier(mesh), CommError);
    call_barrier(mesh);
  });
  EXPECT_TRUE(contains(errors[0], "failed before")) << errors[0];
}

TEST(Mesh, RefusesARootThatIsNoRank) {
  const auto errors = run_mesh(2, [](Mesh& mesh) {
    EXPECT_THROW(
        mesh.begin({.operation = Operation::kBroadcast, .root = 2}, kTimeout),
        InvalidArgument);
    call_barrier(mesh);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace lockstep::tcp::mesh_test
