#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/worker_stream.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

// A console with this test as its reader.
class Reader {
 public:
  Reader() : pipe_(make_pipe()), console_(pipe_.write.get()) {
    ::fcntl(pipe_.read.get(), F_SETFL, O_NONBLOCK);
  }
  Console& console() { return console_; }
  void close() { pipe_.read.close(); }
  /// Returns what the console has written so far and can still write.
  std::string read() {
    std::string all;
    char buffer[4096];
    for (;;) {
      console_.write_some();
      const ssize_t got = ::read(pipe_.read.get(), buffer, sizeof buffer);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  Pipe pipe_;
  Console console_;
};

std::string lines_of(const std::vector<std::string>& pieces) {
  Reader reader;
  LineOutput lines(reader.console(), "[rank 1] ");
  for (const auto& piece : pieces) lines.add(piece);
  lines.finish();
  return reader.read();
}

TEST(LineOutput, CopiesTheLinesThatContainAText) {
  const TemporaryFolder folder;
  const std::string path = folder.path("filtered.log");
  Reader reader;
  LineOutput one(reader.console(), "[rank 0] ",
                 FilteredLog(path, {"apple", "b,c"}));
  LineOutput other(reader.console(), "[rank 1] ", FilteredLog(path, {"apple"}));
  one.add("an app");
  other.add("apples\n");
  one.add("le\nplain\na b,c\nAPPLE");
  one.finish();
  EXPECT_EQ(content_of(path),
            "[rank 1] apples\n[rank 0] an apple\n[rank 0] a b,c\n");
  EXPECT_EQ(std::ranges::count(reader.read(), '\n'), 5);
}

TEST(LineOutput, LabelsWholeLinesHoweverTheyAreCut) {
  EXPECT_EQ(lines_of({"on", "e\ntw", "o\n\nlast"}),
            "[rank 1] one\n[rank 1] two\n[rank 1] \n[rank 1] last\n");
}

TEST(LineOutput, TakesACarriageReturnBeforeTheEndForThatEnd) {
  EXPECT_EQ(lines_of({"one\r\ntwo\r", "\n"}), "[rank 1] one\n[rank 1] two\n");
}

TEST(LineOutput, ShowsTheFirstAndTheLastStateOfAFastProgressBar) {
  std::string bar;
  for (int i = 0; i < 1000; ++i) bar += "\rstep " + std::to_string(i);
  EXPECT_EQ(lines_of({bar, "\n"}), "[rank 1] step 0\n[rank 1] step 999\n");
}

TEST(LineOutput, CutsALineThatNeverEnds) {
  Reader reader;
  LineOutput lines(reader.console(), "> ");
  std::string seen;
  const std::string piece(10'000, 'x');
  for (int i = 0; i < 100; ++i) {
    lines.add(piece);
    seen += reader.read();
  }
  lines.finish();
  seen += reader.read();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 'x'), 1'000'000);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 16);
}

TEST(Console, KeepsWhatASlowReaderDoesNotTake) {
  Reader reader;
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i) + "\n";
  reader.console().add(text);
  reader.console().write_some();
  EXPECT_TRUE(reader.console().has_pending());
  EXPECT_TRUE(reader.console().is_full());
  EXPECT_EQ(reader.read(), text);
  EXPECT_FALSE(reader.console().has_pending());
}

TEST(Console, NoticesThatItsReaderIsGone) {
  ::signal(SIGPIPE, SIG_IGN);
  Reader reader;
  reader.close();
  reader.console().add("x\n");
  reader.console().write_some();
  EXPECT_TRUE(reader.console().is_broken());
  EXPECT_FALSE(reader.console().has_pending());
  EXPECT_TRUE(reader.console().is_reader_gone());
}

TEST(Console, NamesTheFullDisk) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  if (!full.is_open()) GTEST_SKIP() << "no /dev/full";
  Console console(full.get());
  console.add("x\n");
  console.write_some();
  EXPECT_TRUE(console.is_broken());
  EXPECT_FALSE(console.is_reader_gone());
  EXPECT_PRED2(contains, console.why_broken(),
               "can't write /dev/full: No space left on device");
}

TEST(WorkerStream, WritesAllToTheLogAndShowsLines) {
  const TemporaryFolder folder;
  Reader reader;
  WorkerStream stream({.log_path = folder.path("out.log"), .label = "> "},
                      reader.console());
  const std::string text = "a\rb\n\n  \nlast";
  ASSERT_EQ(::write(stream.worker_end(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
  stream.close_worker_end();
  while (stream.fd() >= 0) stream.read_some();
  EXPECT_EQ(content_of(folder.path("out.log")), text);
  EXPECT_EQ(reader.read(), "> a\n> b\n> \n>   \n> last\n");
  EXPECT_EQ(stream.last_lines(2),
            (std::vector<std::string>{"ab", "last"}));  // without blank lines
}

TEST(WorkerStream, ReadsTheEndOfARedirectedLog) {
  const TemporaryFolder folder;
  Reader reader;
  WorkerStream stream(
      {.log_path = folder.path("err.log"), .is_redirected = true},
      reader.console());
  EXPECT_LT(stream.fd(), 0);
  for (int i = 0; i < 5000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_GT(::write(stream.worker_end(), line.data(), line.size()), 0);
  }
  EXPECT_EQ(stream.last_lines(2),
            (std::vector<std::string>{"line 4998", "line 4999"}));
}

TEST(WorkerStream, GoesOnWithoutItsLogOnAFullDisk) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  Reader reader;
  WorkerStream stream({.log_path = "/dev/full", .label = "> "},
                      reader.console());
  ASSERT_EQ(::write(stream.worker_end(), "x\n", 2), 2);
  stream.read_some();
  EXPECT_EQ(reader.read(), "> x\n");
}

}  // namespace
}  // namespace lockstep::launch
