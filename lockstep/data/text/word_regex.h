#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace lockstep::data {

/// A regular expression that cuts text into words, as the pre-tokenizer
/// "Split" with the behaviour "Isolated" of Hugging Face's does: each match is
/// a word, and so is what lies between two matches.
///
/// Theirs is Oniguruma's, ours PCRE2's. What the two read differently (\w, \b,
/// scripts, anchors, recursion and more) is refused; what is left is what
/// published tokenizers use: literals, classes, \p{L} and the other general
/// categories, \s, \d, groups, (?i:...), look-around, quantifiers. PCRE2 10.42
/// knows the characters of Unicode 14.
///
/// Thread-safe once made, with a Matcher for each thread.
class WordRegex {
 public:
  /// Throws DataError (kMalformedData) for an expression that can't be used.
  /// `source` says in messages where it is from.
  WordRegex(const std::string& pattern, const std::string& source);

  const std::string& pattern() const { return pattern_; }

  /// What a thread needs to match: working memory.
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
  /// Together they are `text`, and none is empty. Throws DataError
  /// (kMalformedData) if a match takes more steps than a few for each byte, or
  /// all of them more than 10 s and 20 s for each MiB: an expression can be
  /// made to take longer than anyone lives.
  void split(std::string_view text, Matcher& matcher,
             const std::function<void(std::string_view)>& take) const;

 private:
  size_t match(std::string_view text, size_t begin, Matcher& matcher) const;

  std::string pattern_;
  std::string source_;
  std::shared_ptr<pcre2_real_code_8> code_;
  bool is_compiled_to_machine_code_ = false;
};

/// What GPT-2 cuts text by, and the pre-tokenizer "ByteLevel" with it.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
    R"(| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace lockstep::data
