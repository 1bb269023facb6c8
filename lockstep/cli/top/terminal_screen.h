#pragma once

#include <chrono>
#include <vector>

#include "lockstep/monitor/job_screen.h"

namespace lockstep::cli {

/// The whole terminal, by ncurses, until it is destroyed: then it looks as it
/// did before. One at a time.
class TerminalScreen {
 public:
  enum class Key { kNone, kQuit, kUp, kDown, kNext, kResized };

  /// Throws IoError if stdout is no terminal, or one of a kind that ncurses
  /// does not know.
  TerminalScreen();
  ~TerminalScreen();
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  int width() const;
  int height() const;
  void show(const std::vector<monitor::ScreenLine>& lines);
  /// Waits for a key; kNone if none came by then.
  Key read_key(std::chrono::milliseconds timeout);
};

}  // namespace lockstep::cli
