#include "lockstep/launch/output/worker_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/output/printable.h"

namespace lockstep::launch {
namespace {

constexpr size_t kTailBytes = 16 << 10;

std::string end_of_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0) return {};
  std::string text(kTailBytes, '\0');
  const off_t begin =
      std::max<off_t>(0, facts.st_size - static_cast<off_t>(kTailBytes));
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, size)));
  return text;
}

}  // namespace

WorkerStream::WorkerStream(StreamPlan plan, Console& console)
    : plan_(std::move(plan)), console_(console), lines_(console, plan_.label) {
  if (!plan_.log_path.empty()) {
    log_ = FileDescriptor(
        ::open(plan_.log_path.c_str(),
               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!log_.is_open()) {
      throw IoError({.code = ErrorCode::kFileAccess,
                     .what = "can't write the log file " + plan_.log_path,
                     .got = std::strerror(errno)});
    }
  }
  if (plan_.is_redirected) {
    worker_end_ = std::move(log_);
    return;
  }
  Pipe pipe = make_pipe();
  read_ = std::move(pipe.read);
  worker_end_ = std::move(pipe.write);
}

void WorkerStream::read_some() {
  std::array<char, 64 * 1024> buffer;
  const ssize_t count = ::read(read_.get(), buffer.data(), buffer.size());
  if (count > 0) {
    take({buffer.data(), static_cast<size_t>(count)});
  } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
    finish();
  }
}

void WorkerStream::take(std::string_view bytes) {
  write_log(bytes);
  tail_.append(bytes);
  if (tail_.size() > 2 * kTailBytes) {
    tail_.erase(0, tail_.size() - kTailBytes);
  }
  if (!plan_.is_shown) return;
  if (plan_.is_raw) {
    console_.add(bytes);
  } else {
    lines_.add(bytes);
  }
}

void WorkerStream::write_log(std::string_view bytes) {
  while (log_.is_open() && !bytes.empty()) {
    const ssize_t count = ::write(log_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      // Training goes on without the log.
      log_warning("launch", fmt::format("{} is cut here: {}", plan_.log_path,
                                        std::strerror(errno)));
      log_.close();
    }
  }
}

void WorkerStream::finish() {
  if (!read_.is_open()) return;
  if (plan_.is_shown && !plan_.is_raw) lines_.finish();
  read_.close();
  log_.close();
}

std::vector<std::string> WorkerStream::last_lines(size_t count) const {
  const bool is_in_file = plan_.is_redirected && !plan_.log_path.empty();
  const std::string text = is_in_file ? end_of_file(plan_.log_path) : tail_;
  return launch::last_lines(text, count);
}

}  // namespace lockstep::launch
