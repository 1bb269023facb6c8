#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace lockstep::data {

/// A regular expression that cuts text into words, like Hugging Face's
/// pre-tokenizer "Split" with the behaviour "Isolated": each match is a word,
/// and so is the text between two matches.
///
/// Hugging Face uses Oniguruma, and this class uses PCRE2. Anything with a
/// different meaning in the two (\w, \b, scripts, anchors, recursion and more)
/// is refused. The rest is what published tokenizers use: literals, classes,
/// \p{L} and the other general categories, \s, \d, groups, (?i:...),
/// look-around, quantifiers. PCRE2 10.42 has the characters of Unicode 14.
///
/// Thread-safe once made, with a Matcher for each thread.
class WordRegex {
 public:
  /// Throws DataError (kMalformedData) for an expression that can't be used.
  /// `source` names its origin in messages.
  WordRegex(const std::string& pattern, const std::string& source);

  /// Working memory that a thread needs to match.
  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

   private:
    friend class WordRegex;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// Calls `take` with each word of `text`, which must be UTF-8, in order.
  /// Together the words are `text`, and none is empty. Throws DataError
  /// (kMalformedData) if a match takes more than a few steps per byte, or if
  /// all of them take more than 10 s plus 20 s per MiB. Otherwise an expression
  /// could run practically forever.
  void split(std::string_view text, Matcher& matcher,
             const std::function<void(std::string_view)>& take) const;

 private:
  size_t match(std::string_view text, size_t begin, Matcher& matcher) const;

  std::string source_;
  std::shared_ptr<pcre2_real_code_8> code_;
  bool is_compiled_to_machine_code_ = false;
};

/// The pattern by which GPT-2 and the pre-tokenizer "ByteLevel" cut text.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
    R"(| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace lockstep::data
