#include "lockstep/lm/text/bpe_model.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/lm/text/utf8.h"

namespace lockstep::data {
std::array<std::string, 256> letters_of_bytes() {
  std::array<std::string, 256> letters;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < letters.size(); ++byte) {
    const bool is_visible =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const unsigned point = is_visible ? byte : next++;
    if (point < 0x80) {
      letters[byte] = static_cast<char>(point);
    } else {
      letters[byte] = {static_cast<char>(0xC0 | (point >> 6)),
                       static_cast<char>(0x80 | (point & 0x3F))};
    }
  }
  return letters;
}

namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

[[noreturn]] void refuse_model(const std::string& source,
                               const std::string& what,
                               const std::string& expected,
                               const std::string& got) {
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = fmt::format("{}: {}", source, what),
                   .expected = expected,
                   .got = got,
                   .fix = "the file is damaged or of another kind"});
}

// Translates a token from those letters into bytes. Returns nothing for a token
// with another letter, which stands for its own text in Hugging Face's decoder.
class Speller {
 public:
  Speller() {
    const auto letters = letters_of_bytes();
    for (unsigned byte = 0; byte < letters.size(); ++byte) {
      bytes_.emplace(letters[byte], static_cast<char>(byte));
    }
  }

  std::optional<std::string> bytes_of(const std::string& token) const {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const size_t end = next_utf8(token, at);
      const auto found = bytes_.find(token.substr(at, end - at));
      if (found == bytes_.end()) return std::nullopt;
      bytes += found->second;
      at = end;
    }
    return bytes;
  }

 private:
  std::unordered_map<std::string, char> bytes_;
};

}  // namespace

BpeModel::BpeModel(const BpeDescription& description,
                   const std::string& source) {
  // Ids are below the number of tokens, so a file can't ask for more memory
  // than it has tokens for.
  tokens_.resize(description.vocabulary.size() + description.added.size());
  read_vocabulary(description, source);
  // Read before the added tokens, which are not parts of words.
  read_bytes(source);
  read_merges(description, source);
  read_added(description, source);
  refuse_holes(source);
}

void BpeModel::place(uint32_t id, const std::string& token,
                     const std::string& bytes, const std::string& source) {
  if (token.empty() || token.size() > kLongestToken) {
    refuse_model(source, fmt::format("token {} can't be used", id),
                 fmt::format("1 to {} bytes", kLongestToken),
                 fmt::format("{}", token.size()));
  }
  if (id >= tokens_.size()) {
    refuse_model(
        source, "the ids of tokens leave a hole",
        fmt::format("ids below {}, the number of tokens", tokens_.size()),
        fmt::format("{} for {}", id, quote(token)));
  }
  if (!tokens_[id].empty()) {
    refuse_model(source, fmt::format("the id {} is given twice", id),
                 "an id for each token",
                 fmt::format("{} and another", quote(token)));
  }
  if (!ids_.emplace(token, id).second) {
    refuse_model(source, "a token is there twice", "each token once",
                 quote(token));
  }
  tokens_[id] = bytes;
}

void BpeModel::read_vocabulary(const BpeDescription& description,
                               const std::string& source) {
  const Speller speller;
  for (const auto& [token, id] : description.vocabulary) {
    const auto bytes = speller.bytes_of(token);
    place(id, token, bytes.value_or(token), source);
    if (bytes && description.ignore_merges) words_.emplace(*bytes, id);
  }
}

void BpeModel::read_bytes(const std::string& source) {
  const auto letters = letters_of_bytes();
  for (size_t byte = 0; byte < letters.size(); ++byte) {
    const auto found = ids_.find(letters[byte]);
    if (found == ids_.end()) {
      refuse_model(
          source, "a byte has no token",
          fmt::format("a token {} for byte {}", quote(letters[byte]), byte),
          "none");
    }
    byte_tokens_[byte] = found->second;
  }
}

void BpeModel::read_added(const BpeDescription& description,
                          const std::string& source) {
  for (const AddedToken& token : description.added) {
    const auto known = ids_.find(token.text);
    if (known == ids_.end()) {
      place(token.id, token.text, token.text, source);
    } else if (known->second == token.id) {
      tokens_[token.id] = token.text;
    } else {
      refuse_model(
          source,
          fmt::format("the added token {} has two ids", quote(token.text)),
          fmt::format("{}, as in the vocabulary", known->second),
          fmt::format("{}", token.id));
    }
  }
  // Tokens that are also in the vocabulary need no second place.
  tokens_.resize(ids_.size());
}

void BpeModel::refuse_holes(const std::string& source) const {
  for (const auto& [token, id] : ids_) {
    if (id < tokens_.size()) continue;
    refuse_model(
        source, "the ids of tokens leave a hole",
        fmt::format("ids below {}, the number of tokens", tokens_.size()),
        fmt::format("{} for {}", id, quote(token)));
  }
}

void BpeModel::read_merges(const BpeDescription& description,
                           const std::string& source) {
  uint32_t rank = 0;
  for (const auto& [left, right] : description.merges) {
    const auto find = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end()) {
        refuse_model(source, fmt::format("merge {} names no token", rank),
                     "tokens of the vocabulary", quote(token));
      }
      return found->second;
    };
    const uint64_t pair = uint64_t{find(left)} << 32 | find(right);
    const Merge merge{.rank = rank, .id = find(left + right)};
    if (!merges_.emplace(pair, merge).second) {
      refuse_model(source, fmt::format("merge {} is there twice", rank),
                   "each pair once",
                   fmt::format("{} {}", quote(left), quote(right)));
    }
    ++rank;
  }
}

const BpeModel::Merge* BpeModel::merge_of(uint32_t left, uint32_t right) const {
  const auto found = merges_.find(uint64_t{left} << 32 | right);
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::encode(std::string_view word, Memory& memory,
                      std::vector<uint32_t>& out) const {
  if (!words_.empty()) {
    const auto found = words_.find(std::string(word));
    if (found != words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  constexpr size_t kLongestWord = size_t{64} << 20;
  if (word.size() > kLongestWord) {
    throw DataError({.code = ErrorCode::kFileTooLarge,
                     .what = "a word of a text is too long",
                     .expected = fmt::format("at most {} bytes", kLongestWord),
                     .got = fmt::format("{} bytes", word.size())});
  }
  auto& pieces = memory.pieces;
  pieces.clear();
  for (const char letter : word) {
    const auto at = static_cast<uint32_t>(pieces.size());
    pieces.push_back({.id = byte_tokens_[static_cast<unsigned char>(letter)],
                      .previous = at == 0 ? kNone : at - 1,
                      .next = at + 1 == word.size() ? kNone : at + 1,
                      .is_merged = false});
  }
  if (word.size() > 1) merge(memory);
  for (const auto& piece : pieces) {
    if (!piece.is_merged) out.push_back(piece.id);
  }
}

// The pieces are a linked list, and a heap has the pairs that can be merged. A
// merge makes one piece of two and up to two new pairs. Pairs of merged pieces
// stay in the heap until they come up. Each of the n - 1 merges adds at most
// two, so the heap takes O(n log n) in total.
void BpeModel::merge(Memory& memory) const {
  auto& pieces = memory.pieces;
  auto& candidates = memory.candidates;
  candidates.clear();
  const auto is_later = [](const Memory::Candidate& a,
                           const Memory::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto consider = [&](uint32_t left) {
    const uint32_t right = pieces[left].next;
    if (right == kNone) return false;
    const Merge* found = merge_of(pieces[left].id, pieces[right].id);
    if (found == nullptr) return false;
    candidates.push_back({.rank = found->rank,
                          .position = left,
                          .left = pieces[left].id,
                          .right = pieces[right].id});
    return true;
  };
  for (uint32_t left = 0; left + 1 < pieces.size(); ++left) consider(left);
  std::make_heap(candidates.begin(), candidates.end(), is_later);

  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), is_later);
    const Memory::Candidate candidate = candidates.back();
    candidates.pop_back();
    auto& left = pieces[candidate.position];
    if (left.is_merged || left.id != candidate.left || left.next == kNone ||
        pieces[left.next].id != candidate.right) {
      continue;
    }
    auto& right = pieces[left.next];
    left.id = merge_of(candidate.left, candidate.right)->id;
    right.is_merged = true;
    left.next = right.next;
    if (left.next != kNone) pieces[left.next].previous = candidate.position;
    for (const uint32_t first : {left.previous, candidate.position}) {
      if (first != kNone && consider(first)) {
        std::push_heap(candidates.begin(), candidates.end(), is_later);
      }
    }
  }
}

}  // namespace lockstep::data
