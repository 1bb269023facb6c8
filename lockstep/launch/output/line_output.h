#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/output/console.h"

namespace lockstep::launch {

/// Cuts what a worker writes into lines and gives them to a console, each
/// behind a label, never mixed with another worker's.
///
/// What a progress bar rewrites (text that ends in a carriage return) becomes
/// a line once a second at most. A line of more than 64 KiB comes in pieces.
class LineOutput {
 public:
  LineOutput(Console& console, std::string label)
      : console_(console), label_(std::move(label)) {}

  /// For a worker that has another rank from now on.
  void relabel(std::string label) { label_ = std::move(label); }
  void add(std::string_view bytes);
  /// A last line without an end gets one.
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
