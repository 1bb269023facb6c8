// A master whose name a name server does not know yet.
#include <atomic>
#include <dlfcn.h>
#include <future>
#include <netdb.h>
#include <string>
#include <string_view>

#include <climits>
#include <gtest/gtest.h>

#include "lockstep/launch/rendezvous/rendezvous.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

constexpr const char* kLateName = "master.late-name-test";
// The number of look-ups that fail before the name is known.
std::atomic<int> failing_lookups = 0;

}  // namespace
}  // namespace lockstep::launch

// Replaces that of the system in this program.
extern "C" int getaddrinfo(const char* node, const char* service,
                           const addrinfo* hints, addrinfo** result) {
  using namespace lockstep::launch;
  static const auto system_failure = reinterpret_cast<decltype(&getaddrinfo)>(
      ::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node != nullptr && std::string_view(node) == kLateName) {
    if (failing_lookups-- > 0) return EAI_NONAME;
    node = "127.0.0.1";
  }
  return system_failure(node, service, hints, result);
}

namespace lockstep::launch {
namespace {

RunOptions at_late_name(Backend backend) {
  const Endpoint free = parse_endpoint("", free_endpoint(), 0);
  RunOptions options = two_nodes(Endpoint{kLateName, free.port}.text());
  options.backend = backend;
  options.has_no_secret = true;
  return options;
}

TEST(LateName, OfTheMasterIsWaitedFor) {
  for (const Backend backend : {Backend::kStatic, Backend::kC10d}) {
    RunOptions options = at_late_name(backend);
    failing_lookups = 10;
    if (backend == Backend::kStatic) options.node_rank = 1;
    auto beside = join_beside(options);
    if (backend == Backend::kStatic) options.node_rank = 0;
    const Rendezvous one = join_rendezvous(options, never_stop);
    const Rendezvous other = beside.get();
    EXPECT_LE(failing_lookups, 0);
    EXPECT_NE(one.serves_store, other.serves_store);
    EXPECT_EQ(one.group.nodes.size(), 2U);
  }
}

TEST(LateName, IsNamedWhenTheTimeIsOver) {
  RunOptions options = at_late_name(Backend::kStatic);
  options.node_rank = 0;
  options.join_timeout_s = 0.2;
  failing_lookups = INT_MAX;
  EXPECT_TRUE(is_error(
      error_of<LaunchError>([&] { join_rendezvous(options, never_stop); }),
      ErrorCode::kStoreUnreachable,
      {kLateName, "join_timeout", "--master-addr"}));
}

}  // namespace
}  // namespace lockstep::launch
