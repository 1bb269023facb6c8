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
#include "lockstep/base/input_file.h"
#include "lockstep/base/log.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/terminal.h"

namespace lockstep::launch {
namespace {

constexpr size_t kTailBytes = 16 << 10;
constexpr size_t kMaxShownLineBytes = 400;
constexpr size_t kMaxLineBytes = 64 << 10;
constexpr double kRewritePauseS = 1;

std::string end_of_file(const std::string& path) {
  RegularFile file;
  try {
    file = open_regular_file(path);
  } catch (const IoError&) {
    return {};
  }
  std::string text(kTailBytes, '\0');
  const off_t begin =
      std::max<off_t>(0, file.status.st_size - static_cast<off_t>(kTailBytes));
  const ssize_t size =
      ::pread(file.descriptor.get(), text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, size)));
  return text;
}

// Returns the last `count` lines of `text` that are not blank.
std::vector<std::string> last_lines_of(std::string_view text, size_t count) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < count) {
    const size_t newline = text.find_last_of('\n');
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    const auto line = text.substr(begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      lines.push_back(printable(line, kMaxShownLineBytes));
    }
    text = text.substr(0, begin == 0 ? 0 : newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

FilteredLog filtered_log(const StreamPlan& plan) {
  if (plan.filters.empty()) return {};
  return {plan.filtered_path, plan.filters};
}

}  // namespace

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  file_ = FileDescriptor(
      ::open(path_.c_str(),
             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.is_open()) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't write the log file " + path_,
                   .got = std::strerror(errno)});
  }
}

void LogFile::write(std::string_view bytes) {
  while (file_.is_open() && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      log_warning("launch", fmt::format("{} is cut here: {}", path_,
                                        std::strerror(errno)));
      file_.close();
    }
  }
}

FilteredLog::FilteredLog(std::string path, std::vector<std::string> texts)
    : file_(std::move(path)), texts_(std::move(texts)) {}

void FilteredLog::add(std::string_view label, std::string_view line) {
  const bool is_wanted = std::ranges::any_of(texts_, [&](const auto& text) {
    return line.find(text) != std::string_view::npos;
  });
  if (is_wanted) file_.write(fmt::format("{}{}\n", label, line));
}

void LineOutput::add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (may_rewrite_ && bytes.front() != '\n') end_of_rewrite();
    const size_t room = kMaxLineBytes - line_.size();
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_.append(bytes.substr(0, std::min(end, room)));
    if (end > room) {  // the line is too long: print a part of it
      emit(line_);
      line_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    if (end == bytes.size()) return;
    // A '\r' either begins "\r\n" or rewrites the line. The next byte decides.
    if (bytes[end] == '\r') {
      may_rewrite_ = true;
    } else {
      end_line();
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineOutput::finish() {
  if (!line_.empty()) end_line();
}

void LineOutput::end_line() {
  emit(line_);
  line_.clear();
  may_rewrite_ = false;
}

void LineOutput::end_of_rewrite() {
  const bool is_due = !has_shown_ || since_shown_.seconds() >= kRewritePauseS;
  if (!line_.empty() && is_due) {
    emit(line_);
    has_shown_ = true;
    since_shown_.restart();
  }
  line_.clear();
  may_rewrite_ = false;
}

void LineOutput::emit(std::string_view line) {
  console_.add(erase_unfinished_line(console_.fd()));
  console_.add(label_);
  console_.add(line);
  console_.add("\n");
  filtered_.add(label_, line);
}

WorkerStream::WorkerStream(StreamPlan plan, Console& console)
    : plan_(std::move(plan)),
      console_(console),
      lines_(console, plan_.label, filtered_log(plan_)) {
  if (!plan_.log_path.empty()) log_ = LogFile(plan_.log_path);
  if (plan_.is_redirected) {
    worker_end_ = log_.release();
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
  log_.write(bytes);
  tail_.append(bytes);
  if (tail_.size() > 2 * kTailBytes) {
    tail_.erase(0, tail_.size() - kTailBytes);
  }
  if (!plan_.is_shown) return;
  if (plan_.is_raw) {
    console_.add(bytes);
    // A progress bar rewrites the line that it is in.
    const auto last_line = bytes.substr(bytes.rfind('\n') + 1);
    if (last_line.find('\r') != std::string_view::npos) note_unfinished_line();
  } else {
    lines_.add(bytes);
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
  return last_lines_of(text, count);
}

}  // namespace lockstep::launch
