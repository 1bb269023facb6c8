#include "lockstep/launch/output/line_output.h"

#include <algorithm>

namespace lockstep::launch {
namespace {

constexpr size_t kMaxLineBytes = 64 << 10;
constexpr double kRewritePauseS = 1;

}  // namespace

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
  console_.add(label_);
  console_.add(line);
  console_.add("\n");
}

}  // namespace lockstep::launch
