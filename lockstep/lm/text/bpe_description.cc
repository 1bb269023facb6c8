#include "lockstep/lm/text/bpe_description.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"

namespace lockstep::data {
namespace {

using nlohmann::json;

// Reads a document. Errors name the field that is refused.
class BpeReader {
 public:
  explicit BpeReader(const std::string& source) : source_(source) {}

  BpeDescription read(const json& root) {
    if (!root.is_object()) malformed("the document", "an object", root);
    require_null(root, "truncation");
    require_null(root, "padding");
    require_null(root, "normalizer");
    read_model(field(root, "model", "model"));
    if (!root.contains("pre_tokenizer")) {
      unsupported("pre_tokenizer", "ByteLevel", "none");
    }
    read_pre_tokenizer(root["pre_tokenizer"]);
    read_decoder(root.contains("decoder") ? root["decoder"] : json());
    if (root.contains("added_tokens")) read_added(root["added_tokens"]);
    return std::move(result_);
  }

  void read_vocabulary(const json& vocabulary, const std::string& name) {
    if (!vocabulary.is_object()) malformed(name, "an object", vocabulary);
    if (vocabulary.size() > kMaxBpeTokens) {
      unsupported(name, fmt::format("at most {} tokens", kMaxBpeTokens),
                  fmt::format("{}", vocabulary.size()));
    }
    for (const auto& [token, id] : vocabulary.items()) {
      result_.vocabulary.emplace_back(
          token, id_of(id, fmt::format("{}.{}", name, quote(token))));
    }
  }

  void add_merge(std::string_view line, size_t number) {
    const size_t blank = line.find(' ');
    const bool is_pair = blank != line.npos && blank > 0 &&
                         blank + 1 < line.size() &&
                         line.find(' ', blank + 1) == line.npos;
    if (!is_pair) {
      malformed(fmt::format("merge {}", number),
                "two tokens with a blank between them",
                json(std::string(line)));
    }
    result_.merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
  }

  BpeDescription take() { return std::move(result_); }
  BpeDescription& result() { return result_; }

 private:
  const json& field(const json& object, const char* key,
                    const std::string& name) const {
    const auto found = object.find(key);
    if (found == object.end()) malformed(name, "to be there", json());
    return *found;
  }

  void require_null(const json& object, const char* key) const {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) {
      unsupported(key, "null", brief_type(*found));
    }
  }

  // Throws unless an option is off: null, false, 0 or "".
  void require_off(const json& object, const std::string& name,
                   const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return;
    if (*found == false || *found == 0 || *found == 0.0 || *found == "") return;
    unsupported(fmt::format("{}.{}", name, key), "null or false",
                brief(*found));
  }

  bool flag(const json& object, const std::string& name, const char* key,
            bool by_default) const {
    const auto found = object.find(key);
    if (found == object.end()) return by_default;
    if (!found->is_boolean()) {
      malformed(fmt::format("{}.{}", name, key), "true or false", *found);
    }
    return found->get<bool>();
  }

  std::string text(const json& object, const std::string& name,
                   const char* key) const {
    const json& value = field(object, key, fmt::format("{}.{}", name, key));
    if (!value.is_string()) {
      malformed(fmt::format("{}.{}", name, key), "a string", value);
    }
    return value.get<std::string>();
  }

  uint32_t id_of(const json& value, const std::string& name) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxIds) {
      malformed(name, fmt::format("an id below {}", kMaxIds), value);
    }
    return value.get<uint32_t>();
  }

  void read_model(const json& model) {
    if (!model.is_object()) malformed("model", "an object", model);
    // GPT-2's file on the hub is older than this field.
    if (model.contains("type") && model["type"] != "BPE") {
      unsupported("model.type", "\"BPE\"", brief(model["type"]));
    }
    for (const char* key : {"dropout", "continuing_subword_prefix",
                            "end_of_word_suffix", "byte_fallback"}) {
      require_off(model, "model", key);
    }
    result_.ignore_merges = flag(model, "model", "ignore_merges", false);
    read_vocabulary(field(model, "vocab", "model.vocab"), "model.vocab");
    const json& merges = field(model, "merges", "model.merges");
    if (!merges.is_array()) malformed("model.merges", "a list", merges);
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      if (merge.is_string()) {
        add_merge(merge.get_ref<const std::string&>(), i);
      } else if (merge.is_array() && merge.size() == 2 &&
                 merge[0].is_string() && merge[1].is_string()) {
        result_.merges.emplace_back(merge[0], merge[1]);
      } else {
        malformed(fmt::format("merge {}", i), "\"a b\" or [\"a\", \"b\"]",
                  merge);
      }
    }
  }

  // Reads a ByteLevel, which may follow one or more Splits.
  void read_pre_tokenizer(const json& object) {
    const std::string name = "pre_tokenizer";
    if (!object.is_object()) {
      unsupported(name, "ByteLevel", brief(object));
    }
    if (text(object, name, "type") != "Sequence") {
      read_byte_level(object, name);
      return;
    }
    const json& list =
        field(object, "pretokenizers", "pre_tokenizer.pretokenizers");
    if (!list.is_array() || list.empty() || list.size() > kMaxSplits) {
      malformed("pre_tokenizer.pretokenizers",
                fmt::format("a list of 1 to {}", kMaxSplits), list);
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string part =
          fmt::format("pre_tokenizer.pretokenizers[{}]", i);
      if (!list[i].is_object()) malformed(part, "an object", list[i]);
      if (i + 1 == list.size()) {
        read_byte_level(list[i], part);
      } else {
        read_split(list[i], part);
      }
    }
    if (result_.add_prefix_space && !result_.splits.empty()) {
      unsupported(name, "add_prefix_space false after a Split", "true");
    }
  }

  void read_split(const json& split, const std::string& name) {
    if (split.value("type", json()) != "Split") {
      unsupported(name + ".type", "\"Split\"",
                  brief(split.value("type", json())));
    }
    const std::string behavior = text(split, name, "behavior");
    if (behavior != "Isolated") {
      unsupported(name + ".behavior", "\"Isolated\"", quote(behavior));
    }
    if (flag(split, name, "invert", false)) {
      unsupported(name + ".invert", "false", "true");
    }
    const json& pattern = field(split, "pattern", name + ".pattern");
    if (!pattern.is_object() || !pattern.contains("Regex")) {
      unsupported(name + ".pattern", "a Regex", brief(pattern));
    }
    result_.splits.push_back(text(pattern, name + ".pattern", "Regex"));
  }

  void read_byte_level(const json& object, const std::string& name) {
    const std::string type = text(object, name, "type");
    if (type != "ByteLevel") {
      unsupported(name + ".type", "\"ByteLevel\"", quote(type));
    }
    result_.add_prefix_space = flag(object, name, "add_prefix_space", true);
    result_.has_gpt2_split = flag(object, name, "use_regex", true);
  }

  void read_decoder(const json& decoder) const {
    const bool is_byte_level =
        decoder.is_object() && decoder.value("type", json()) == "ByteLevel";
    if (!is_byte_level) {
      unsupported("decoder", "ByteLevel", brief_type(decoder));
    }
  }

  void read_added(const json& list) {
    if (!list.is_array()) malformed("added_tokens", "a list", list);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = fmt::format("added_tokens[{}]", i);
      const json& token = list[i];
      if (!token.is_object()) malformed(name, "an object", token);
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        require_off(token, name, key);
      }
      const bool is_special = flag(token, name, "special", false);
      result_.added.push_back(
          {.id = id_of(field(token, "id", name + ".id"), name + ".id"),
           .text = text(token, name, "content"),
           .is_special = is_special,
           .is_normalized = flag(token, name, "normalized", !is_special)});
    }
  }

  // Describes the kind of a value for an error.
  static std::string brief_type(const json& value) {
    if (value.is_object() && value.contains("type")) {
      return brief(value["type"]);
    }
    return brief(value);
  }

  [[noreturn]] void malformed(const std::string& name,
                              const std::string& expected,
                              const json& got) const {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("{}: {} is not as it must be", source_, name),
         .expected = expected,
         .got = brief(got),
         .fix = "the file is damaged or of another kind"});
  }

  [[noreturn]] void unsupported(const std::string& name,
                                const std::string& expected,
                                const std::string& got) const {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("{}: {} of this tokenizer is not supported",
                             source_, name),
         .expected = expected,
         .got = got,
         .fix = "docs/language-models.md lists the tokenizers that are read"});
  }

  static constexpr uint64_t kMaxIds = 2 * kMaxBpeTokens;
  static constexpr size_t kMaxSplits = 16;

  const std::string& source_;
  BpeDescription result_;
};

json split_json(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

}  // namespace

BpeDescription read_bpe(const json& document, const std::string& source) {
  return BpeReader(source).read(document);
}

BpeDescription read_gpt2_files(std::string_view vocab_json,
                               std::string_view merges_txt,
                               const std::string& source) {
  BpeReader reader(source);
  const auto document = parse_strict_json(source + "/vocab.json", vocab_json,
                                          kTokenizerJsonLimits);
  reader.read_vocabulary(document.root, "vocab.json");
  for (size_t number = 1; !merges_txt.empty(); ++number) {
    const size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    if (reader.result().merges.size() == kMaxBpeTokens) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = source + "/merges.txt has too many merges",
                       .expected = fmt::format("at most {}", kMaxBpeTokens),
                       .got = "more"});
    }
    reader.add_merge(line, number);
  }
  BpeDescription result = reader.take();
  for (const auto& [token, id] : result.vocabulary) {
    if (token == "<|endoftext|>") {
      result.added.push_back({.id = id, .text = token, .is_special = true});
    }
  }
  return result;
}

std::string write_bpe_json(const BpeDescription& description) {
  json vocabulary = json::object();
  for (const auto& [token, id] : description.vocabulary) vocabulary[token] = id;
  json merges = json::array();
  for (const auto& [left, right] : description.merges) {
    merges.push_back(json::array({left, right}));
  }
  json added = json::array();
  for (const AddedToken& token : description.added) {
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.is_normalized},
                     {"special", token.is_special}});
  }
  const json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", description.add_prefix_space},
                        {"trim_offsets", true},
                        {"use_regex", description.has_gpt2_split}};
  json pre_tokenizer = byte_level;
  if (!description.splits.empty()) {
    json list = json::array();
    for (const auto& pattern : description.splits) {
      list.push_back(split_json(pattern));
    }
    list.push_back(byte_level);
    pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", list}};
  }
  const json root{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", pre_tokenizer},
                  {"post_processor", nullptr},
                  {"decoder",
                   {{"type", "ByteLevel"},
                    {"add_prefix_space", true},
                    {"trim_offsets", true},
                    {"use_regex", true}}},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", description.ignore_merges},
                    {"vocab", vocabulary},
                    {"merges", merges}}}};
  return root.dump() + "\n";
}

}  // namespace lockstep::data
