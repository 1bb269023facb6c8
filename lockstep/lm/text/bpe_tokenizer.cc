#include "lockstep/lm/text/bpe_tokenizer.h"

#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/bpe_model.h"
#include "lockstep/lm/text/utf8.h"
#include "lockstep/lm/text/word_regex.h"

namespace lockstep::data {
namespace {

/// Finds tokens in text: the leftmost first, and the longest of several there.
class AddedTokens {
 public:
  struct Found {
    size_t begin;
    size_t end;
    uint32_t id;
  };

  /// `text` must not be empty.
  void add(const std::string& text, uint32_t id) {
    ids_.emplace(text, id);
    lengths_[static_cast<unsigned char>(text.front())].insert(text.size());
  }
  /// Returns the first token that begins at or after `begin`.
  std::optional<Found> find(std::string_view text, size_t begin) const {
    if (ids_.empty()) return std::nullopt;
    for (; begin < text.size(); ++begin) {
      for (const size_t length :
           lengths_[static_cast<unsigned char>(text[begin])]) {
        if (length > text.size() - begin) continue;
        const auto found = ids_.find(std::string(text.substr(begin, length)));
        if (found == ids_.end()) continue;
        return Found{
            .begin = begin, .end = begin + length, .id = found->second};
      }
    }
    return std::nullopt;
  }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
  /// Lengths of the tokens that begin with a byte, the longest first.
  std::array<std::set<size_t, std::greater<>>, 256> lengths_;
};

}  // namespace

struct BpeTokenizer::Parts {
  Parts(BpeDescription read, const std::string& source)
      : description(std::move(read)), model(description, source) {
    for (const AddedToken& token : description.added) {
      (token.is_normalized ? matched_second : matched_first)
          .add(token.text, token.id);
    }
    for (const auto& pattern : description.splits) {
      splits.emplace_back(pattern, source);
    }
    if (description.has_gpt2_split) splits.emplace_back(kGpt2Pattern, source);
  }

  BpeDescription description;
  BpeModel model;
  AddedTokens matched_first;
  AddedTokens matched_second;
  std::vector<WordRegex> splits;
};

// Encodes one text after another, and remembers words.
class BpeTokenizer::Encoder {
 public:
  explicit Encoder(const Parts& parts)
      : parts_(parts), matchers_(parts.splits.size()), known_(kKnownWords) {}

  std::vector<uint32_t> encode(std::string_view text) {
    out_.clear();
    cut(text, parts_.matched_first, [&](std::string_view outer) {
      cut(outer, parts_.matched_second,
          [&](std::string_view inner) { encode_plain(inner); });
    });
    return std::exchange(out_, {});
  }

 private:
  struct KnownWord {
    std::string word;
    std::vector<uint32_t> ids;
  };

  // Adds the tokens that are found, and passes the text between them to `take`.
  template <class Take>
  void cut(std::string_view text, const AddedTokens& tokens, Take take) {
    size_t begin = 0;
    while (const auto found = tokens.find(text, begin)) {
      if (found->begin > begin) take(text.substr(begin, found->begin - begin));
      out_.push_back(found->id);
      begin = found->end;
    }
    if (begin < text.size()) take(text.substr(begin));
  }

  void encode_plain(std::string_view text) {
    if (!parts_.description.add_prefix_space || text.starts_with(' ')) {
      split(text, 0);
      return;
    }
    split(" " + std::string(text), 0);
  }

  void split(std::string_view text, size_t level) {
    if (level == parts_.splits.size()) {
      encode_word(text);
      return;
    }
    parts_.splits[level].split(
        text, matchers_[level],
        [&](std::string_view word) { split(word, level + 1); });
  }

  // Uses a table in which each word has one possible place, and replaces the
  // previous word there.
  void encode_word(std::string_view word) {
    if (word.size() > kLongestKnownWord) {
      parts_.model.encode(word, memory_, out_);
      return;
    }
    KnownWord& known =
        known_[std::hash<std::string_view>()(word) % kKnownWords];
    if (known.word != word) {
      known.ids.clear();
      parts_.model.encode(word, memory_, known.ids);
      known.word = word;
    }
    out_.insert(out_.end(), known.ids.begin(), known.ids.end());
  }

  static constexpr size_t kKnownWords = 32'768;
  static constexpr size_t kLongestKnownWord = 64;

  const Parts& parts_;
  std::vector<WordRegex::Matcher> matchers_;
  std::vector<KnownWord> known_;
  BpeModel::Memory memory_;
  std::vector<uint32_t> out_;
};

// Holds as many encoders as there were threads that encoded at the same time.
class BpeTokenizer::Pool {
 public:
  std::unique_ptr<Encoder> take(const Parts& parts) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto encoder = std::move(idle_.back());
        idle_.pop_back();
        return encoder;
      }
    }
    return std::make_unique<Encoder>(parts);
  }

  void give_back(std::unique_ptr<Encoder> encoder) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(encoder));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Encoder>> idle_;
};

BpeTokenizer::BpeTokenizer(BpeDescription description,
                           const std::string& source)
    : parts_(std::make_unique<const Parts>(std::move(description), source)),
      pool_(std::make_unique<Pool>()) {}

BpeTokenizer::~BpeTokenizer() = default;

int64_t BpeTokenizer::vocabulary() const {
  return static_cast<int64_t>(parts_->model.size());
}

std::vector<uint32_t> BpeTokenizer::encode(std::string_view text) const {
  if (const auto at = first_invalid_utf8(text)) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = "a text is not UTF-8",
                     .expected = "characters of UTF-8",
                     .got = fmt::format("others at byte {}", *at),
                     .fix = fix_for_text(text)});
  }
  auto encoder = pool_->take(*parts_);
  auto ids = encoder->encode(text);
  // Not returned after an exception, when a remembered word may be incomplete.
  pool_->give_back(std::move(encoder));
  return ids;
}

std::string BpeTokenizer::decode(std::span<const uint32_t> ids) const {
  std::string text;
  for (const uint32_t id : ids) {
    if (id >= parts_->model.size()) {
      throw InvalidArgument(
          "data", {.code = ErrorCode::kBadOption,
                   .what = "there is no such token",
                   .expected = fmt::format("an id below {}", vocabulary()),
                   .got = fmt::format("{}", id)});
    }
    text += parts_->model.bytes_of(id);
  }
  return text;
}

std::optional<uint32_t> BpeTokenizer::end_of_text() const {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const AddedToken& token : parts_->description.added) {
      if (token.is_special && token.text == name) return token.id;
    }
  }
  return std::nullopt;
}

std::string BpeTokenizer::to_json() const {
  return write_bpe_json(parts_->description);
}

}  // namespace lockstep::data
