#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/text.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/models/model_settings.h"

namespace lockstep::models {
namespace {

LanguageModelSpec gpt(const std::string& name, int64_t layers, int64_t heads,
                      int64_t width, int64_t context, int64_t vocabulary) {
  LanguageModelSpec spec;
  spec.name = name;
  spec.vocabulary = vocabulary;
  spec.context = context;
  spec.layers = layers;
  spec.heads = heads;
  spec.key_value_heads = heads;
  spec.width = width;
  spec.inner_width = 4 * width;
  return spec;
}

LanguageModelSpec llama(LanguageModelSpec spec, int64_t key_value_heads,
                        int64_t inner_width, bool is_tied) {
  spec.architecture = Architecture::kLlama;
  spec.key_value_heads = key_value_heads;
  spec.inner_width = inner_width;
  spec.is_tied = is_tied;
  return spec;
}

// gpt-wide has the width and the vocabulary of gpt2, but two of its layers. The
// sizes of GPT-2 are from Radford et al. 2019, table 2. The sizes of llama-135m
// are those of SmolLM-135M, and of llama-1.1b those of TinyLlama-1.1B.
const std::vector<LanguageModelSpec>& known_specs() {
  static const std::vector<LanguageModelSpec> known = {
      gpt("gpt-nano", 3, 3, 48, 64, 65),
      gpt("gpt-char", 4, 4, 128, 64, 65),
      gpt("gpt-wide", 2, 12, 768, 256, 50257),
      gpt("gpt2", 12, 12, 768, 1024, 50257),
      gpt("gpt2-medium", 24, 16, 1024, 1024, 50257),
      gpt("gpt2-large", 36, 20, 1280, 1024, 50257),
      gpt("gpt2-xl", 48, 25, 1600, 1024, 50257),
      llama(gpt("llama-char", 4, 4, 128, 64, 65), 2, 344, true),
      llama(gpt("llama-135m", 30, 9, 576, 2048, 49152), 3, 1536, true),
      llama(gpt("llama-1.1b", 22, 32, 2048, 2048, 32000), 4, 5632, false),
  };
  return known;
}

// The members of a spec with their names in settings and in messages.
constexpr std::pair<const char*, int64_t LanguageModelSpec::*> kSizes[] = {
    {"vocabulary", &LanguageModelSpec::vocabulary},
    {"context", &LanguageModelSpec::context},
    {"layers", &LanguageModelSpec::layers},
    {"heads", &LanguageModelSpec::heads},
    {"key_value_heads", &LanguageModelSpec::key_value_heads},
    {"width", &LanguageModelSpec::width},
    {"inner_width", &LanguageModelSpec::inner_width}};
constexpr std::pair<const char*, double LanguageModelSpec::*> kNumbers[] = {
    {"dropout", &LanguageModelSpec::dropout},
    {"norm_epsilon", &LanguageModelSpec::norm_epsilon},
    {"rope_theta", &LanguageModelSpec::rope_theta}};

/// Returns the number of elements in the matrices of a block.
int64_t matrices_of_block(const LanguageModelSpec& spec) {
  const int64_t width = spec.width;
  if (spec.architecture == Architecture::kGpt2) {
    // c_attn, c_proj, c_fc and the second c_proj.
    return (4 * width * width) + (2 * width * spec.inner_width);
  }
  const int64_t head_width = width / spec.heads;
  return (2 * width * width) + (2 * width * spec.key_value_heads * head_width) +
         (3 * width * spec.inner_width);
}

/// Returns a * b, or a number beyond any memory if that is too large, because
/// sizes from a file may be anything.
int64_t product(int64_t a, int64_t b) {
  constexpr int64_t kMax = int64_t{1} << 61;
  return a > kMax / b ? kMax : a * b;
}

[[noreturn]] void refuse(const LanguageModelSpec& spec, const std::string& what,
                         const std::string& expected, const std::string& got) {
  throw InvalidArgument(
      "models",
      {.code = ErrorCode::kBadOption,
       .what = fmt::format("can't build {}: {}", spec.name.substr(0, 60), what),
       .expected = expected,
       .got = got});
}

}  // namespace

const std::vector<std::string>& language_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& spec : known_specs()) all.push_back(spec.name);
    return all;
  }();
  return names;
}

LanguageModelSpec language_spec(const std::string& name) {
  for (const auto& spec : known_specs()) {
    if (spec.name == name) return spec;
  }
  throw InvalidArgument("models",
                        {.code = ErrorCode::kUnknownName,
                         .what = "there is no language model '" + name + "'",
                         .fix = did_you_mean(name, language_names())});
}

void check(const LanguageModelSpec& spec) {
  for (const auto& [name, member] : kSizes) {
    const int64_t size = spec.*member;
    if (size >= 1 && size <= kMaxModelSize) continue;
    refuse(spec, fmt::format("{} is out of range", name),
           fmt::format("1 to {}", kMaxModelSize), fmt::format("{}", size));
  }
  if (spec.width % spec.heads != 0) {
    refuse(
        spec, "the heads do not divide the width",
        "a width that is a multiple of the heads",
        fmt::format("{}, width {}", counted(spec.heads, "head"), spec.width));
  }
  const bool is_llama = spec.architecture == Architecture::kLlama;
  if (is_llama && spec.width / spec.heads % 2 != 0) {
    refuse(spec, "rotary positions need an even width of a head",
           "an even number", fmt::format("{}", spec.width / spec.heads));
  }
  if (spec.heads % spec.key_value_heads != 0 ||
      (!is_llama && spec.heads != spec.key_value_heads)) {
    refuse(spec, "the heads can't share that many keys and values",
           is_llama ? "a divisor of the heads" : "as many as heads",
           fmt::format("{}, key_value_heads {}", counted(spec.heads, "head"),
                       spec.key_value_heads));
  }
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    refuse(spec, "dropout is out of range", "0 to less than 1",
           fmt::format("{}", spec.dropout));
  }
  if (!(spec.norm_epsilon > 0 && spec.norm_epsilon < 1)) {
    refuse(spec, "norm_epsilon is out of range", "between 0 and 1",
           fmt::format("{}", spec.norm_epsilon));
  }
  if (!(spec.rope_theta >= 1 && std::isfinite(spec.rope_theta))) {
    refuse(spec, "rope_theta is out of range", "at least 1",
           fmt::format("{}", spec.rope_theta));
  }
}

std::map<std::string, std::string> to_settings(const LanguageModelSpec& spec) {
  const bool is_llama = spec.architecture == Architecture::kLlama;
  std::map<std::string, std::string> settings{
      {"name", spec.name},
      {"architecture", is_llama ? "llama" : "gpt2"},
      {"is_tied", spec.is_tied ? "true" : "false"}};
  for (const auto& [name, member] : kSizes) {
    settings[name] = std::to_string(spec.*member);
  }
  for (const auto& [name, member] : kNumbers) {
    settings[name] = fmt::format("{}", spec.*member);
  }
  return settings;
}

LanguageModelSpec language_spec_from_settings(
    const std::map<std::string, std::string>& text) {
  const std::string architecture = setting_text(text, "architecture");
  LanguageModelSpec spec;
  spec.name = setting_text(text, "name");
  if (architecture != "gpt2" && architecture != "llama") {
    refuse(spec, "there is no such architecture", "gpt2 or llama",
           architecture.substr(0, 40));
  }
  spec.architecture =
      architecture == "llama" ? Architecture::kLlama : Architecture::kGpt2;
  for (const auto& [name, member] : kSizes) {
    spec.*member = setting_size(text, name);
  }
  for (const auto& [name, member] : kNumbers) {
    spec.*member = setting_number(text, name);
  }
  spec.is_tied = setting_text(text, "is_tied") == "true";
  check(spec);
  return spec;
}

int64_t count_parameters(const LanguageModelSpec& spec) {
  const int64_t width = spec.width;
  const int64_t table = spec.vocabulary * width;
  const bool is_gpt2 = spec.architecture == Architecture::kGpt2;
  // Llama has a weight for each of its two norms. GPT-2 also has biases of the
  // norms and of the matrices, and positions.
  const int64_t vectors = is_gpt2 ? 9 * width + spec.inner_width : 2 * width;
  const int64_t blocks =
      product(spec.layers, matrices_of_block(spec) + vectors);
  return table + blocks + (spec.is_tied ? 0 : table) +
         (is_gpt2 ? spec.context * width + 2 * width : width);
}

double training_flops_of_token(const LanguageModelSpec& spec) {
  const int64_t head = spec.vocabulary * spec.width;
  const int64_t attention = spec.layers * spec.width * spec.context;
  return static_cast<double>(
      (6 * (spec.layers * matrices_of_block(spec) + head)) + (12 * attention));
}

}  // namespace lockstep::models
