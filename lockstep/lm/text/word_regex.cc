#define PCRE2_CODE_UNIT_WIDTH 8
#include "lockstep/lm/text/word_regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <pcre2.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/lm/text/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kLongestPattern = 10'000;
constexpr size_t kNoMatch = std::numeric_limits<size_t>::max();

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <class T, auto kFree>
using Owned = std::unique_ptr<T, Free<kFree>>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Translates a pattern of Oniguruma for PCRE2. Refuses what has another meaning
// there.
class PatternReader {
 public:
  PatternReader(std::string_view pattern, const std::string& source)
      : pattern_(pattern), source_(source) {}

  std::string read() {
    while (at_ < pattern_.size()) {
      const char letter = pattern_[at_];
      if (letter == '\\') {
        read_escape();
      } else if (in_class_) {
        read_in_class(letter);
      } else {
        read_outside(letter);
      }
    }
    return std::move(result_);
  }

 private:
  bool follows(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }

  void keep(size_t letters) {
    result_ += pattern_.substr(at_, letters);
    at_ += letters;
  }

  void read_in_class(char letter) {
    // Oniguruma nests classes, intersects them with && and has [:names:].
    if (letter == '[') refuse("[ within a class");
    if (follows("&&")) refuse("&& within a class");
    if (letter == ']') in_class_ = false;
    keep(1);
  }

  void read_outside(char letter) {
    if (letter == '[') {
      in_class_ = true;
      keep(follows("[^") ? 2 : 1);
      if (follows("]")) refuse("an empty class");
    } else if (letter == '(') {
      read_group();
    } else if (letter == '^' || letter == '$') {
      refuse(letter == '^' ? "^" : "$");
    } else if (follows("{,") || follows("}+")) {
      refuse(std::string(pattern_.substr(at_, 2)));
    } else {
      keep(1);
    }
  }

  void read_group() {
    if (follows("(*")) refuse("(*");
    if (!follows("(?")) return keep(1);
    for (const std::string_view kind :
         {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (follows(kind)) return keep(kind.size());
    }
    refuse(std::string(pattern_.substr(at_, 3)));
  }

  void read_escape() {
    if (at_ + 1 == pattern_.size()) refuse("\\ at the end");
    const char kind = pattern_[at_ + 1];
    if (kind == 's' || kind == 'S') {
      // PCRE2's \s includes the Mongolian vowel separator, which Unicode
      // removed.
      result_ += kind == 's' ? "\\p{wspace}" : "\\P{wspace}";
      at_ += 2;
    } else if (kind == 'p' || kind == 'P') {
      read_property();
    } else if (kind == 'x' && follows("\\x{")) {
      keep(3);
    } else if (std::string_view("dDrntf").find(kind) !=
                   std::string_view::npos ||
               (kind >= '!' && kind <= '/') || (kind >= ':' && kind <= '@') ||
               (kind >= '[' && kind <= '`') || (kind >= '{' && kind <= '~') ||
               kind == ' ') {
      keep(2);
    } else {
      refuse(std::string(pattern_.substr(at_, 2)));
    }
  }

  // Reads a general category. Other names mean scripts in one library, and
  // script extensions in the other.
  void read_property() {
    const size_t end = pattern_.find('}', at_);
    std::string_view name = pattern_.substr(at_ + 2);
    if (!name.starts_with('{') || end == pattern_.npos)
      refuse("\\p without {}");
    name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    constexpr std::string_view kMajor = "LMNPSZC";
    constexpr std::string_view kMinor = "ultmoncedlpskifc";
    if (name.empty() || name.size() > 2 ||
        kMajor.find(name[0]) == kMajor.npos ||
        (name.size() == 2 && kMinor.find(name[1]) == kMinor.npos)) {
      refuse(std::string(pattern_.substr(at_, end + 1 - at_)));
    }
    keep(end + 1 - at_);
  }

  [[noreturn]] void refuse(const std::string& part) const {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = source_ + ": its regular expression can't be used",
         .expected =
             "literals, classes, \\p{L} and other categories, \\s, \\d, "
             "(?:), (?i:), look-around and quantifiers",
         .got = fmt::format("{} at byte {}", quote(part), at_),
         .fix = "this build reads it otherwise than Hugging Face's library"});
  }

  std::string_view pattern_;
  const std::string& source_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string result_;
};

}  // namespace

struct WordRegex::Matcher::State {
  // The stack grows as needed, from the first size to the second.
  static constexpr size_t kMinStack = size_t{32} << 10;
  static constexpr size_t kMaxStack = size_t{1} << 20;

  State() {
    if (!data || !context) throw std::bad_alloc();
    // Without this stack, 32 KiB of the thread's stack are used.
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  Owned<pcre2_match_data, pcre2_match_data_free> data{
      pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context{
      pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(kMinStack, kMaxStack, nullptr)};
};

WordRegex::Matcher::Matcher() : state_(std::make_unique<State>()) {}
WordRegex::Matcher::~Matcher() = default;

WordRegex::WordRegex(const std::string& pattern, const std::string& source)
    : source_(source) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = source + ": its regular expression can't be used",
                     .expected = expected,
                     .got = got});
  };
  if (pattern.size() > kLongestPattern) {
    refuse(fmt::format("at most {} bytes", kLongestPattern),
           fmt::format("{}", pattern.size()));
  }
  if (first_invalid_utf8(pattern)) refuse("UTF-8", "other bytes");
  const std::string translated = PatternReader(pattern, source).read();

  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  size_t offset = 0;
  // Anchored, because split() itself goes from character to character, so that
  // it can limit the time.
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                            translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED |
                                PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                            &code, &offset, context.get()),
              &pcre2_code_free);
  if (code_ == nullptr) {
    refuse("a regular expression of Unicode characters",
           fmt::format("{} at byte {} of {}", pcre2_message(code), offset,
                       quote(translated)));
  }
  // PCRE2 interprets where a system does not allow new machine code.
  is_compiled_to_machine_code_ =
      pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

// Returns the end of the match that begins at `begin`, or kNoMatch.
size_t WordRegex::match(std::string_view text, size_t begin,
                        Matcher& matcher) const {
  auto& state = *matcher.state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result =
      is_compiled_to_machine_code_
          ? pcre2_jit_match(code_.get(), subject, text.size(), begin, 0,
                            state.data.get(), state.context.get())
          : pcre2_match(code_.get(), subject, text.size(), begin,
                        PCRE2_NO_UTF_CHECK, state.data.get(),
                        state.context.get());
  if (result >= 0) return pcre2_get_ovector_pointer(state.data.get())[1];
  if (result == PCRE2_ERROR_NOMATCH) return kNoMatch;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = source_ + ": its regular expression takes too long",
                   .expected = "a number of steps that grows as the text",
                   .got = fmt::format("{} at byte {} of a text",
                                      pcre2_message(result), begin)});
}

void WordRegex::split(std::string_view text, Matcher& matcher,
                      const std::function<void(std::string_view)>& take) const {
  // Allows a few passes over a run of blanks.
  constexpr uint64_t kSteps = 100'000;
  constexpr uint64_t kStepsForAByte = 20;
  const uint64_t steps = kSteps + kStepsForAByte * text.size();
  pcre2_set_match_limit(matcher.state_->context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(
                            steps, std::numeric_limits<uint32_t>::max())));
  constexpr double kMiB = 1 << 20;
  const double seconds = 10 + 20 * static_cast<double>(text.size()) / kMiB;
  constexpr uint64_t kMatchesPerClockCheck = 64;
  const Stopwatch watch;

  size_t begin = 0;  // start of the text that is not part of a word yet
  size_t at = 0;
  uint64_t matches = 0;
  const auto cut = [&](size_t end) {
    if (end > begin) take(text.substr(begin, end - begin));
    begin = end;
  };
  while (at < text.size()) {
    if (++matches % kMatchesPerClockCheck == 0 && watch.seconds() > seconds) {
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = source_ + ": its regular expression takes too long",
           .expected =
               fmt::format("{} bytes in {:.0f} s", text.size(), seconds),
           .got = fmt::format("{} bytes", at)});
    }
    const size_t end = match(text, at, matcher);
    if (end == kNoMatch) {
      at = next_utf8(text, at);
    } else {
      cut(at);
      // An empty match cuts the text at its position.
      if (end == at) {
        at = next_utf8(text, at);
      } else {
        cut(end);
        at = end;
      }
    }
  }
  cut(text.size());
}

}  // namespace lockstep::data
