// The check of links finds peer copies that arrive changed, are dropped or
// never end, and copies then avoid the bad link.
// Tier: full. It starts processes that check links.
#include "lockstep/device/links/links.h"

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/inspect/device_topology.h"
#include "lockstep/inspect/link_speed.h"
#include "tests/accelerator/broken_link.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/base/error_code_of.h"

namespace lockstep::sim::links {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;
using Kind = LinkFinding::Kind;

std::vector<LinkFinding> check(int devices, const LinkCheckOptions& options) {
  return check_links(links_between(first_devices(devices)), options);
}

LinkCheckOptions short_check() {
  return LinkCheckOptions().sizes({1 << 10, 1 << 18}).timeout_s(20);
}

TEST_F(LinksOnAccelerator, AreGood) {
  EXPECT_TRUE(check(4, short_check()).empty());
}

TEST_F(LinksOnAccelerator, ThatChangeDataAreNamed) {
  break_link({.from = 2, .to = 1});
  const auto findings = check(4, short_check());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].copy.link, (Link{device(2), device(1)}));
  EXPECT_EQ(findings[0].kind, Kind::kChanged);
  EXPECT_EQ(findings[0].copy.bytes, 1 << 10);
  EXPECT_EQ(findings[0].wrong_bytes, (1 << 10) / 128 * 8);
}

TEST_F(LinksOnAccelerator, ThatWriteNothingAreNamed) {
  Faults faults;
  faults.drop_copy = [](int from, int to) { return from == 0 && to == 3; };
  set_faults(faults);
  const auto findings = check(4, short_check());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].copy.link, (Link{device(0), device(3)}));
  EXPECT_EQ(findings[0].kind, Kind::kNotWritten);
}

// A copy that hangs holds up its stream of the sender, but no other copy from
// that device.
TEST_F(LinksOnAccelerator, ThatHangAreNamedWithinTheDeadline) {
  Faults faults;
  faults.hang_copy = [](int from, int to) { return from == 0 && to == 1; };
  set_faults(faults);
  const auto begin = Clock::now();
  const auto findings =
      check(3, LinkCheckOptions().sizes({1 << 10}).timeout_s(2));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(6));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].copy.link, (Link{device(0), device(1)}));
  EXPECT_EQ(findings[0].kind, Kind::kTimeout);
}

TEST_F(LinksOnAccelerator, ThatChangeLargeCopiesOnlyAreNamedWithTheSize) {
  break_link({.least_bytes = 1 << 20});
  const auto findings = check(
      2, LinkCheckOptions().sizes({1 << 10, (1 << 20) - 8, 1 << 20, 4 << 20}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].copy.link, (Link{device(1), device(0)}));
  EXPECT_EQ(findings[0].copy.bytes, 1 << 20);
}

TEST_F(LinksOnAccelerator, ThatFailNowAndThenAreFoundByMoreRounds) {
  break_link({.one_of = 50});
  EXPECT_TRUE(check(2, LinkCheckOptions().sizes({1 << 10})).empty());
  const auto copies = break_link({.one_of = 50});
  const auto findings =
      check(2, LinkCheckOptions().sizes({1 << 10}).rounds(60));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].copy.link, (Link{device(1), device(0)}));
  EXPECT_EQ(copies->broken, 50);
}

TEST_F(LinksOnAccelerator, AreStagedIfTheyAreBadAndDirectIfTheyAreNot) {
  break_link({.from = 1, .to = 0});
  LogCapture log;
  guard_links(first_devices(2), BadLinks::kStage);
  EXPECT_NE(log.text().find("sim:1 -> sim:0: a copy of 1 KiB arrived changed"),
            std::string::npos)
      << log.text();
  EXPECT_EQ(chosen_path({device(1), device(0)}), CopyPath::kStaged);
  EXPECT_EQ(chosen_path({device(0), device(1)}), CopyPath::kDirect);
  const Tensor numbers = torch::arange(1000, torch::kFloat);
  for (const Link& link : links_between(first_devices(2))) {
    const Tensor source = to_device(numbers, link.from);
    EXPECT_TRUE(torch::equal(to_device(source, link.to).cpu(), numbers))
        << link.name();
    Tensor copy = torch::zeros_like(source, torch_device(link.to));
    copy_over(link, copy, source);
    EXPECT_TRUE(torch::equal(copy.cpu(), numbers)) << link.name();
  }
}

TEST_F(LinksOnAccelerator, ThatAreBadEndARunIfItIsToldSo) {
  break_link({});
  EXPECT_EQ(
      error_code_of([] { guard_links(first_devices(2), BadLinks::kStop); }),
      ErrorCode::kBadLink);
  guard_links(first_devices(2), BadLinks::kIgnore);
  EXPECT_FALSE(chosen_path({device(1), device(0)}));
}

TEST_F(LinksOnAccelerator, WithoutPeerAccessGoOverTheHostAndAreRight) {
  int64_t peer_copies = 0;
  Faults faults;
  faults.peer_access = false;
  faults.corrupt_copy = [&](int, int, std::byte*, size_t) { ++peer_copies; };
  faults.drop_copy = [](int, int) { return true; };
  set_faults(faults);
  EXPECT_TRUE(check(2, short_check()).empty());
  EXPECT_EQ(peer_copies, 0);
}

TEST_F(LinksOnAccelerator, AreNotUsedByKernels) {
  const Tensor here = torch::ones({4}, torch_device(device(0)));
  const Tensor there = torch::ones({4}, torch_device(device(1)));
  EXPECT_THROW(here.add(there), c10::Error);
}

TEST_F(LinksOnAccelerator, HaveATopologyOfMeasuredSpeeds) {
  const auto devices = first_devices(2);
  inspect::Topology topology = inspect::device_topology(devices);
  EXPECT_EQ(inspect::render_matrix(topology),
            "\tsim:0\tsim:1\nsim:0\tX\tN/A\nsim:1\tN/A\tX\n");
  const auto speeds = inspect::measure_links(links_between(devices),
                                             {.bytes = 1 << 20, .copies = 3});
  ASSERT_EQ(speeds.size(), 2U);
  for (const auto& speed : speeds) {
    EXPECT_GT(speed.bytes_per_s, 0);
    EXPECT_GT(speed.both_bytes_per_s, 0);
    EXPECT_GT(speed.staged_bytes_per_s, 0);
    EXPECT_GT(speed.latency_s, 0);
  }
  inspect::add_measured_connections(topology, speeds);
  EXPECT_NE(topology.connections[0][1].kind, inspect::ConnectionKind::kUnknown);
  EXPECT_EQ(topology.connections[0][1], topology.connections[1][0]);
}

}  // namespace
}  // namespace lockstep::sim::links
