#include "lockstep/base/classic_locale.h"

namespace lockstep {
namespace {

locale_t classic() {
  // Null if there is not enough memory; uselocale() then changes nothing.
  static const locale_t locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

}  // namespace

ClassicLocale::ClassicLocale() : previous_(::uselocale(classic())) {}

ClassicLocale::~ClassicLocale() { ::uselocale(previous_); }

}  // namespace lockstep
