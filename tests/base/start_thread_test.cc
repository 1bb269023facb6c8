#include "lockstep/base/start_thread.h"

#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/thread_limit.h"

namespace lockstep {
namespace {

TEST(StartThread, RunsTheTask) {
  bool has_run = false;
  start_thread("test", "this", [&] { has_run = true; }).join();
  EXPECT_TRUE(has_run);
}

TEST(StartThread, SaysWhatItCanStartNoThreadFor) {
  EXPECT_EXIT(exit_without_threads([] {
                std::promise<void> never;
                const auto end = never.get_future().share();
                // They end with the process, because the error must not join
                // them.
                auto& kept = *new std::vector<std::thread>();
                for (int i = 0; i < 64; ++i) {
                  kept.push_back(
                      start_thread("test", "a guest", [end] { end.wait(); }));
                }
              }),
              testing::ExitedWithCode(0),
              "\\[test\\] can't start a thread for a guest");
}

}  // namespace
}  // namespace lockstep
