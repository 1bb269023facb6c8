#include "lockstep/device/links/link_check.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_advice.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/device/memory.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/faults/link_faults.h"

namespace lockstep {
namespace {

using Kind = LinkFinding::Kind;

std::vector<Device> slices(int count) {
  std::vector<Device> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({.type = c10::kCPU, .index = i, .slices = count});
  }
  return all;
}

/// Links between slices, of which one may have a fault.
class Links : public testing::Test {
 protected:
  Links() { install_accounting_allocator(); }
  ~Links() override { inject_link_faults(""); }

  static std::vector<LinkFinding> check(int devices,
                                        const LinkCheckOptions& options = {}) {
    return check_links(links_between(slices(devices)), options);
  }
};

TEST_F(Links, AreAllOrderedPairs) {
  std::vector<std::string> names;
  for (const Link& link : links_between(slices(3))) {
    names.push_back(link.name());
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "cpu:0 -> cpu:1", "cpu:0 -> cpu:2", "cpu:1 -> cpu:0",
                       "cpu:1 -> cpu:2", "cpu:2 -> cpu:0", "cpu:2 -> cpu:1"}));
  EXPECT_EQ(parse_link("cuda:3>cpu:0")->name(), "cuda:3 -> cpu:0");
  for (const char* text : {"", "cpu:0", "cpu:0>", "cpu>cpu:1", "cpu:-1>cpu:0",
                           "cpu:0>cpu:1x", "gpu:0>gpu:1"}) {
    EXPECT_FALSE(parse_link(text)) << text;
  }
}

TEST_F(Links, AreGoodInAThousandRounds) {
  EXPECT_TRUE(
      check(2, LinkCheckOptions().sizes({8, 1 << 10, 1 << 16}).rounds(1000))
          .empty());
}

TEST_F(Links, AreGoodAtAllSizes) { EXPECT_TRUE(check(2).empty()); }

// Each kind of fault on each pair, in each direction, from each size on.
TEST_F(Links, WithAFaultAreFound) {
  const auto options = LinkCheckOptions().timeout_s(5);
  for (const Link& link : links_between(slices(3))) {
    for (const int64_t bytes : options.sizes()) {
      for (const char* kind : {"corrupt", "drop"}) {
        const std::string fault = fmt::format(
            "{}:{}>{}@{}", kind, link.from.name(), link.to.name(), bytes);
        inject_link_faults(fault);
        LinkCheckOptions shorter = options;
        shorter.sizes({1 << 10, bytes});
        const auto findings = check(3, shorter);
        ASSERT_EQ(findings.size(), 1U) << fault;
        EXPECT_EQ(findings[0].copy.link, link) << fault;
        EXPECT_EQ(findings[0].copy.bytes, bytes) << fault;
        EXPECT_EQ(findings[0].kind, fault.starts_with("drop")
                                        ? Kind::kNotWritten
                                        : Kind::kChanged)
            << fault;
        EXPECT_GT(findings[0].wrong_bytes, 0) << fault;
      }
    }
  }
}

TEST_F(Links, ThatHangAreFoundAndTheOthersCheckedAllTheSame) {
  inject_link_faults("delay=6:cpu:0>cpu:1@1024;drop:cpu:1>cpu:0");
  const auto findings =
      check(2, LinkCheckOptions().sizes({8, 1 << 10}).timeout_s(2));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].kind, Kind::kTimeout);
  EXPECT_EQ(findings[0].copy.bytes, 1 << 10);
  EXPECT_EQ(findings[1].kind, Kind::kNotWritten);
}

TEST_F(Links, FaultsThatCanNotBeAreErrors) {
  for (const char* text :
       {"corrupt", "corrupt:cpu:0", "bend:cpu:0>cpu:1", "delay:cpu:0>cpu:1",
        "delay=x:cpu:0>cpu:1", "corrupt:cpu:0>cpu:1@", "drop:cpu:0>cpu:1;"}) {
    EXPECT_EQ(error_code_of([&] { parse_link_faults(text); }),
              ErrorCode::kBadVariable)
        << text;
  }
  const auto faults =
      parse_link_faults("delay=0.25:cpu:0>cpu:1;drop:cuda:1>cuda:0@4096");
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].delay_s, 0.25);
  EXPECT_EQ(faults[1].least_bytes, 4096);
}

TEST_F(Links, ThatAreBadAreGoneAround) {
  inject_link_faults("corrupt:cpu:0>cpu:1");
  const Link link{slices(2)[0], slices(2)[1]};
  const torch::Tensor source = torch::arange(1000, torch::kFloat);
  torch::Tensor copy = torch::zeros(1000);
  copy_over(link, copy, source);
  EXPECT_FALSE(torch::equal(copy, source));
  EXPECT_FALSE(torch::equal(to_device(source, link.to), source));

  LogCapture log;
  guard_links(slices(2), BadLinks::kStage);
  EXPECT_NE(log.text().find("cpu:0 -> cpu:1: a copy of 1 KiB arrived changed"),
            std::string::npos)
      << log.text();
  EXPECT_EQ(chosen_path(link), CopyPath::kStaged);
  EXPECT_EQ(chosen_path({link.to, link.from}), CopyPath::kDirect);
  copy_over(link, copy, source);
  EXPECT_TRUE(torch::equal(copy, source));
  EXPECT_TRUE(torch::equal(to_device(source, link.to), source));
}

TEST_F(Links, ThatAreBadEndARunIfItIsToldSo) {
  inject_link_faults("drop:cpu:1>cpu:0");
  EXPECT_EQ(error_code_of([] { guard_links(slices(2), BadLinks::kStop); }),
            ErrorCode::kBadLink);
  EXPECT_EQ(error_code_of([] { guard_links(slices(2), BadLinks::kIgnore); }),
            std::nullopt);
  EXPECT_EQ(error_code_of([] { parse_bad_links("stgae"); }),
            ErrorCode::kUnknownName);
}

// A host whose IOMMU translates, and a bridge that redirects.
TEST(LinkAdvice, NamesWhatTheHostHas) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path("");
  const auto bridge = root / "sys/bus/pci/devices/0000:00:01.1";
  std::filesystem::create_directories(root / "sys/class/iommu/dmar0");
  std::filesystem::create_directories(root / "proc");
  std::filesystem::create_directories(bridge);
  std::ofstream(root / "proc/cmdline") << "quiet intel_iommu=on\n";
  std::ofstream(bridge / "class") << "0x060400\n";
  std::string config(4096, '\0');
  config[0x100] = 0x01;  // advanced errors, and the next one's place
  config[0x102] = 0x01;
  config[0x103] = 0x14;
  config[0x140] = 0x0d;  // ACS
  config[0x142] = 0x01;
  config[0x146] = 0x1d;  // with its redirections on
  std::ofstream(bridge / "config", std::ios::binary) << config;

  HostPciFacts facts = gather_pci_facts(root);
  EXPECT_EQ(facts.iommus, std::vector<std::string>{"dmar0"});
  EXPECT_EQ(facts.iommu_options, "intel_iommu=on");
  EXPECT_EQ(facts.redirecting_bridges,
            std::vector<std::string>{"0000:00:01.1"});
  const auto advice = advice_on_bad_links(facts);
  ASSERT_EQ(advice.size(), 2U);
  EXPECT_NE(advice[0].find("iommu=pt"), std::string::npos);
  EXPECT_NE(advice[1].find("0000:00:01.1"), std::string::npos);

  facts.iommu_options = "intel_iommu=on iommu=pt";
  facts.redirecting_bridges.clear();
  EXPECT_NE(advice_on_bad_links(facts)[0].find("dmesg"), std::string::npos);
  // Of a list that goes in a circle, and of one that is cut off.
  config[0x103] = 0x10;
  std::ofstream(bridge / "config", std::ios::binary) << config;
  EXPECT_TRUE(gather_pci_facts(root).redirecting_bridges.empty());
  std::ofstream(bridge / "config", std::ios::binary) << config.substr(0, 64);
  EXPECT_TRUE(gather_pci_facts(root).redirecting_bridges.empty());
}

}  // namespace
}  // namespace lockstep
