#pragma once

#include <clocale>

namespace lockstep {

/// While it lives, the C library reads and writes numbers of this thread with a
/// point, whatever setlocale() was told. For libraries that call strtod() and
/// its like. Other threads are not affected.
class ClassicLocale {
 public:
  ClassicLocale();
  ~ClassicLocale();
  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;

 private:
  locale_t previous_;
};

}  // namespace lockstep
