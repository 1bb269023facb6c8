#include "lockstep/launch/rendezvous/endpoint.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"

namespace lockstep::launch {
namespace {

TEST(Endpoint, IsHostAndPort) {
  const auto parse = [](const std::string& text) {
    return parse_endpoint("--rdzv-endpoint", text, 5);
  };
  EXPECT_EQ(parse("node1:80").text(), "node1:80");
  EXPECT_EQ(parse("node1").text(), "node1:5");
  EXPECT_EQ(parse("[::1]:80").host, "::1");
  EXPECT_EQ(parse("[::1]:80").text(), "[::1]:80");
  EXPECT_EQ(parse("::1").host, "::1");
  for (const char* bad : {"", ":80", "a:", "a:b", "a:70000", "[::1]80"}) {
    EXPECT_THROW(parse(bad), InvalidArgument) << bad;
  }
}

TEST(Endpoint, ListensOnAFreePortOnce) {
  Endpoint endpoint{"127.0.0.1", 0};
  const auto first = listen_at(endpoint);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_GT(endpoint.port, 0);
  EXPECT_TRUE(is_reachable(endpoint, 1000));
  EXPECT_TRUE(listen_at(endpoint).empty());
}

TEST(Endpoint, KnowsThisHost) {
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host(host_name()));
  EXPECT_FALSE(is_this_host("192.0.2.1"));  // no machine (RFC 5737)
}

}  // namespace
}  // namespace lockstep::launch
