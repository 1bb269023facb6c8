#include "lockstep/shm/segment.h"

#include <array>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/transport/transport.h"
#include "tests/base/expect_problem.h"
#include "tests/shm/ranks.h"

namespace lockstep::shm {
namespace {

TEST(Segment, IsSharedWithOtherProcesses) {
  const auto segment = Segment::create(10'000);
  EXPECT_EQ(segment->bytes().size() % 4096, 0U);
  const SegmentAddress address = segment->address();
  RankProcess writer([&] {
    const auto opened = Segment::open(address);
    require(opened->bytes().data() != segment->bytes().data(), "same mapping");
    std::memcpy(opened->bytes().data(), "hello", 6);
  });
  EXPECT_EQ(writer.wait(), "");
  EXPECT_STREQ(reinterpret_cast<char*>(segment->bytes().data()), "hello");
}

TEST(Segment, IsMappedOnceInAProcess) {
  const auto segment = Segment::create(100);
  EXPECT_EQ(Segment::open(segment->address()), segment);
}

// Also counts the other open descriptors of this process.
size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Segment, OfAnotherProcessKeepsNoDescriptor) {
  const auto segment = Segment::create(10'000);
  const SegmentAddress address = segment->address();
  RankProcess reader([&] {
    const size_t before = open_descriptors();
    const auto opened = Segment::open(address);
    require(open_descriptors() == before, "a descriptor stays open");
    const auto adopted = Segment::adopt(address);
    require(open_descriptors() == before + 1, "nobody can open it here");
    require(adopted->address().inode == address.inode, "another segment");
  });
  EXPECT_EQ(reader.wait(), "");
}

// Writes to `segment` in a child of fork(), which sees what was written before,
// and drops its copy of the segment.
void write_in_child(std::shared_ptr<const Segment>& segment) {
  RankProcess child([&] {
    auto* text = reinterpret_cast<char*>(segment->bytes().data());
    require(std::strcmp(text, "hello") == 0, text);
    std::memcpy(text, "child", 6);
    segment.reset();
  });
  const std::string error = child.wait();
  if (!error.empty()) throw std::runtime_error(error);
}

TEST(Segment, IsLeftAloneByAChild) {
  auto segment = Segment::create(10'000);
  std::memcpy(segment->bytes().data(), "hello", 6);
  write_in_child(segment);
  const SegmentAddress address = segment->address();
  RankProcess other([&] {
    auto opened = Segment::open(address);
    write_in_child(opened);
    require(opened->bytes()[0] == std::byte{'h'}, "the child wrote to it");
    std::memcpy(opened->bytes().data(), "other", 6);
  });
  EXPECT_EQ(other.wait(), "");
  EXPECT_STREQ(reinterpret_cast<char*>(segment->bytes().data()), "other");
}

// The process that created it has ended, so the child can't open it.
TEST(Segment, IsLeftAloneByAChildThatCanNotOpenIt) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  RankProcess creator([&] {
    const auto created = Segment::create(10'000);
    const SegmentAddress address = created->address();
    require(::write(pipe[1], &address, sizeof address) == sizeof address, "");
    ::pause();
  });
  SegmentAddress address;
  ASSERT_EQ(::read(pipe[0], &address, sizeof address),
            static_cast<ssize_t>(sizeof address));
  const auto segment = Segment::open(address);
  std::memcpy(segment->bytes().data(), "hello", 6);
  ::kill(creator.pid(), SIGKILL);
  EXPECT_EQ(creator.wait(), "signal 9");
  RankProcess child([&] { std::memcpy(segment->bytes().data(), "child", 6); });
  EXPECT_EQ(child.wait(), "");
  EXPECT_STREQ(reinterpret_cast<char*>(segment->bytes().data()), "hello");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Segment, TellsTheLackOfDescriptorsFromALostProcess) {
  const auto segment = Segment::create(10'000);
  const SegmentAddress address = segment->address();
  RankProcess reader([&] {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    Segment::open(address);
  });
  const std::string message = reader.wait();
  EXPECT_NE(message.find("Too many open files (this process may have 0 open)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("ulimit -n"), std::string::npos) << message;
}

TEST(Segment, CantBeCutShort) {
  const auto segment = Segment::create(8192);
  EXPECT_NE(::ftruncate(segment->address().fd, 4096), 0);
}

TEST(Segment, IsNotOpenedFromAnythingElse) {
  const auto segment = Segment::create(8192);
  SegmentAddress wrong_inode = segment->address();
  wrong_inode.inode += 1;
  EXPECT_THROW(Segment::open(wrong_inode), CommError);

  const int plain = ::memfd_create("plain", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(plain, 8192), 0);
  struct stat status {};
  ASSERT_EQ(::fstat(plain, &status), 0);
  EXPECT_THROW(Segment::open({.pid = ::getpid(),
                              .fd = plain,
                              .inode = status.st_ino,
                              .bytes = 8192}),
               CommError);
  ::close(plain);
  EXPECT_THROW(Segment::open({.pid = 0, .fd = 0, .inode = 1, .bytes = 1}),
               CommError);
}

TEST(RankMemory, HasDataThatIsAllInIt) {
  std::array<std::byte, 300> bytes{};
  const transport::Bytes all(bytes);
  const transport::RankMemory memory{.owner = nullptr,
                                     .bytes = all.subspan(100, 100)};
  EXPECT_EQ(memory.offset_of(all.subspan(100, 100)), 0U);
  EXPECT_EQ(memory.offset_of(all.subspan(164, 36)), 64U);
  EXPECT_EQ(memory.offset_of(all.subspan(164, 37)), std::nullopt);
  EXPECT_EQ(memory.offset_of(all.subspan(99, 10)), std::nullopt);
  EXPECT_EQ(memory.offset_of(all.subspan(250, 10)), std::nullopt);
  EXPECT_EQ(memory.offset_of({}), std::nullopt);
  EXPECT_EQ(transport::RankMemory{}.offset_of({}), std::nullopt);
}

TEST(Segment, SaysHowMuchItCouldNotGet) {
  expect_problem(
      error_of<OutOfResources>([] { Segment::create(size_t{1} << 60); }),
      ErrorCode::kOutOfResources, {"1152921504606846976 bytes"});
}

}  // namespace
}  // namespace lockstep::shm
