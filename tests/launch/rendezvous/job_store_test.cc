#include "lockstep/launch/rendezvous/job_store.h"

#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

TEST(JobStore, ThatIsLostIsAskedNoMore) {
  auto pair = std::make_optional<Pair>();
  const size_t joiner = pair->agents[0].serves_store ? 1 : 0;
  JobStore store(std::move(pair->agents[joiner].store));
  pair.reset();
  const auto why = [&] {
    return error_of<LaunchError>([&] { store.get("x"); });
  };
  const std::string first = why();
  const std::string later = why();
  for (const std::string& text : {first, later}) {
    EXPECT_TRUE(is_error(text, ErrorCode::kStoreUnreachable,
                         {store.endpoint().text()}));
  }
  EXPECT_NE(first, later) << "it was asked again";
}

}  // namespace
}  // namespace lockstep::launch
