// Tier: nightly, alone. It measures time.
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

TEST(RoundTrip, TakesTensOfMicroseconds) {
  Served served;
  Client client(served.of(agent()));
  client.set("key", "value");
  constexpr int kTrips = 5000;
  const Stopwatch watch;
  for (int i = 0; i < kTrips; ++i) client.get("key");
  const double us = watch.seconds() / kTrips * 1e6;
  RecordProperty("microseconds", std::to_string(us));
  EXPECT_LT(us, 500) << "about 50 on an idle machine";
}

}  // namespace
}  // namespace lockstep::store
