#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/lm/text/bpe_description.h"

namespace lockstep::data {

/// Returns GPT-2's letters for bytes. A byte that is a visible letter of
/// Latin-1 is that letter. The 68 other bytes are U+0100, U+0101, ... in their
/// order.
std::array<std::string, 256> letters_of_bytes();

/// Encodes the bytes of a word with byte pair encoding (Sennrich, Haddow and
/// Birch, ACL 2016, over bytes as in Radford et al., 2019): the pair of
/// neighbours whose merge comes first in the list becomes one token, the
/// leftmost such pair first, until no pair can be merged. Thread-safe once
/// made.
class BpeModel {
 public:
  /// Throws DataError (kMalformedData) for ids or tokens that occur twice, gaps
  /// in the ids, bytes without a token, and merges of or to unknown tokens.
  BpeModel(const BpeDescription& description, const std::string& source);

  /// Returns the number of tokens, including the added ones.
  size_t size() const { return tokens_.size(); }
  /// Returns the bytes that a token stands for.
  const std::string& bytes_of(uint32_t id) const { return tokens_[id]; }

  /// Working memory for merging. Each thread has one and reuses it.
  struct Memory {
    struct Piece {
      uint32_t id;
      uint32_t previous;
      uint32_t next;
      bool is_merged;
    };
    struct Candidate {
      uint32_t rank;
      uint32_t position;
      uint32_t left;
      uint32_t right;
    };
    std::vector<Piece> pieces;
    std::vector<Candidate> candidates;
  };

  /// Appends the tokens of `word` to `out`, in O(n log n) for n bytes. Throws
  /// DataError (kFileTooLarge) for a word of more than 64 MiB.
  void encode(std::string_view word, Memory& memory,
              std::vector<uint32_t>& out) const;

 private:
  struct Merge {
    uint32_t rank;
    uint32_t id;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const {
      pair *= 0x9e3779b97f4a7c15;
      return pair ^ (pair >> 32);
    }
  };

  void read_vocabulary(const BpeDescription& description,
                       const std::string& source);
  void read_bytes(const std::string& source);
  void read_merges(const BpeDescription& description,
                   const std::string& source);
  void read_added(const BpeDescription& description, const std::string& source);
  void place(uint32_t id, const std::string& token, const std::string& bytes,
             const std::string& source);
  void refuse_holes(const std::string& source) const;
  const Merge* merge_of(uint32_t left, uint32_t right) const;
  void merge(Memory& memory) const;

  std::vector<std::string> tokens_;                  // as bytes, by id
  std::unordered_map<std::string, uint32_t> ids_;    // as spelled in the file
  std::unordered_map<std::string, uint32_t> words_;  // ignore_merges: by bytes
  std::array<uint32_t, 256> byte_tokens_{};
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
};

}  // namespace lockstep::data
