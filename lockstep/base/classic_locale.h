#pragma once

#include <clocale>

namespace lockstep {

/// Sets this thread's locale to "C" for as long as the object exists. The C
/// library then reads and writes numbers with a decimal point, regardless of
/// setlocale(). For libraries that call strtod() and similar functions. Other
/// threads are not affected.
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
