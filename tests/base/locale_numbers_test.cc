// Numbers in files have a decimal point, whatever the locale of the process.
// Tier: nightly. It compiles two locales, which takes seconds.
#include <clocale>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/json.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/strict_json.h"
#include "tests/base/compiled_locale.h"

namespace lockstep {
namespace {

/// Sets the locale of this process while this object exists.
class LocaleScope {
 public:
  explicit LocaleScope(const CompiledLocale& locale) {
    ::setenv("LOCPATH", locale.folder().c_str(), 1);
    is_set_ = std::setlocale(LC_ALL, locale.name().c_str()) != nullptr;
  }
  ~LocaleScope() {
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }
  LocaleScope(const LocaleScope&) = delete;
  LocaleScope& operator=(const LocaleScope&) = delete;
  bool is_set() const { return is_set_; }

 private:
  bool is_set_ = false;
};

// The decimal point of Pashto has two bytes, but nlohmann-json expects one.
TEST(NumbersInOtherLocales, AreReadAsInC) {
  for (const char* source : {"de_DE", "ps_AF"}) {
    const CompiledLocale locale(source);
    const LocaleScope scope(locale);
    ASSERT_TRUE(scope.is_set()) << source;
    ASSERT_NE(std::to_string(0.5), "0.500000") << "the locale has no effect";
    EXPECT_EQ(parse_number<double>("0.5"), 0.5);
    EXPECT_EQ(parse_json("[0.5, 2.5e-3]"), nlohmann::json({0.5, 2.5e-3}));
    EXPECT_EQ(try_parse_json("0.25"), nlohmann::json(0.25));
    EXPECT_TRUE(try_parse_json("0,5").is_discarded());
    EXPECT_EQ(parse_strict_json("a.json", R"({"lr": 0.5})", {.fail = fail_data})
                  .root["lr"],
              0.5);
    EXPECT_EQ(nlohmann::json(0.5).dump(), "0.5");
    EXPECT_NE(std::to_string(0.5), "0.500000") << "the locale was changed";
  }
}

}  // namespace
}  // namespace lockstep
