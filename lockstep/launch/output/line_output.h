#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/output/console.h"

namespace lockstep::launch {

/// Splits a worker's output into lines and passes them to a console, each with
/// a label before it. Lines of different workers are never mixed.
///
/// Text that ends in a carriage return (a progress bar) becomes a line at most
/// once a second. A line of more than 64 KiB is split into pieces.
class LineOutput {
 public:
  LineOutput(Console& console, std::string label)
      : console_(console), label_(std::move(label)) {}

  /// Changes the label when the worker gets another rank.
  void relabel(std::string label) { label_ = std::move(label); }
  void add(std::string_view bytes);
  /// Shows the last line even if it has no newline.
  void finish();

 private:
  void end_line();
  void end_of_rewrite();
  void emit(std::string_view line);

  Console& console_;
  std::string label_;
  std::string line_;
  bool may_rewrite_ = false;  // the line so far ends in a carriage return
  bool has_shown_ = false;
  Stopwatch since_shown_;
};

}  // namespace lockstep::launch
