#pragma once

#include <chrono>
#include <vector>

#include "lockstep/tools/top/job_screen.h"

namespace lockstep::cli {

/// Controls the whole terminal with ncurses until it is destroyed, which
/// restores the terminal. Only one may exist at a time.
class TerminalScreen {
 public:
  enum class Key { kNone, kQuit, kUp, kDown, kNext, kResized };

  /// Throws IoError if stdout is not a terminal, or is a terminal of a type
  /// that ncurses does not know.
  TerminalScreen();
  ~TerminalScreen();
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  int width() const;
  int height() const;
  void show(const std::vector<monitor::ScreenLine>& lines);
  /// Waits for a key. Returns kNone if no key was pressed in time.
  Key read_key(std::chrono::milliseconds timeout);
};

}  // namespace lockstep::cli
