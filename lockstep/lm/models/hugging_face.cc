#include "lockstep/lm/models/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/models/model_settings.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using models::Architecture;
using models::LanguageModel;
using models::LanguageModelSpec;
using nlohmann::json;

constexpr size_t kLargestConfig = 1 << 20;
constexpr const char* kConfig = "config.json";

json read_json(const std::string& path) {
  return parse_strict_json(
             path, read_file(path, kLargestConfig),
             {.depth = 6, .listed = 4096, .fail = fail_checkpoint})
      .root;
}

/// Reads the fields of a config.json.
class Config {
 public:
  explicit Config(const std::string& folder)
      : path_(folder + "/" + kConfig), root_(read_json(path_)) {
    if (!root_.is_object()) refuse("the document", "an object", root_);
  }

  /// Returns true if the key exists and is not null.
  bool has(const char* key) const {
    return root_.contains(key) && !root_.at(key).is_null();
  }
  int64_t size(const char* key) const {
    const json& value = at(key);
    const bool is_size = value.is_number_integer() && value >= 1 &&
                         value <= models::kMaxModelSize;
    if (!is_size) {
      refuse(key, fmt::format("1 to {}", models::kMaxModelSize), value);
    }
    return value.get<int64_t>();
  }
  int64_t size(const char* key, int64_t fallback) const {
    return has(key) ? size(key) : fallback;
  }
  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const json& value = at(key);
    if (!value.is_number()) refuse(key, "a number", value);
    return value.get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    const json& value = at(key);
    if (!value.is_boolean()) refuse(key, "true or false", value);
    return value.get<bool>();
  }
  std::string text(const char* key, const std::string& fallback = "") const {
    if (!has(key)) return fallback;
    const json& value = at(key);
    if (!value.is_string()) refuse(key, "a text", value);
    return value.get<std::string>();
  }
  const json& at(const char* key) const {
    if (!has(key)) refuse(key, "a value", "none");
    return root_.at(key);
  }
  /// Throws unless an option has the only value that is supported.
  void expect(const char* key, bool value) const {
    if (boolean(key, value) == value) return;
    refuse(key, value ? "true" : "false", root_.at(key));
  }
  void expect_any(const char* key, const std::set<std::string>& known) const {
    if (known.contains(text(key, *known.begin()))) return;
    refuse(key, fmt::format("{}", fmt::join(known, " or ")), root_.at(key));
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected,
                           const json& got) const {
    throw CheckpointError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("{}: '{}' can't be loaded", path_, key),
         .expected = expected,
         .got = brief(got),
         .fix = "Lockstep loads GPT-2 and Llama as they were published"});
  }

 private:
  std::string path_;
  json root_;
};

LanguageModelSpec gpt2_spec(const Config& config) {
  LanguageModelSpec spec;
  spec.architecture = Architecture::kGpt2;
  spec.vocabulary = config.size("vocab_size");
  spec.context = config.has("n_positions") ? config.size("n_positions")
                                           : config.size("n_ctx");
  spec.layers = config.size("n_layer");
  spec.heads = config.size("n_head");
  spec.key_value_heads = spec.heads;
  spec.width = config.size("n_embd");
  spec.inner_width = config.size("n_inner", 4 * spec.width);
  spec.norm_epsilon = config.number("layer_norm_epsilon", 1e-5);
  spec.is_tied = config.boolean("tie_word_embeddings", true);
  config.expect_any("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  config.expect("scale_attn_weights", true);
  config.expect("scale_attn_by_inverse_layer_idx", false);
  config.expect("add_cross_attention", false);
  return spec;
}

double rope_theta(const Config& config) {
  // transformers 5 writes this form.
  if (config.has("rope_parameters")) {
    const json& rope = config.at("rope_parameters");
    const bool is_plain =
        rope.is_object() && rope.value("rope_type", "default") == "default";
    if (!is_plain) {
      config.refuse("rope_parameters", "the rope_type 'default'", rope);
    }
    const auto theta = rope.find("rope_theta");
    if (theta != rope.end() && theta->is_number()) return theta->get<double>();
  }
  if (config.has("rope_scaling")) {
    config.refuse("rope_scaling", "none", config.at("rope_scaling"));
  }
  return config.number("rope_theta", 10000);
}

LanguageModelSpec llama_spec(const Config& config) {
  LanguageModelSpec spec;
  spec.architecture = Architecture::kLlama;
  spec.vocabulary = config.size("vocab_size");
  spec.context = config.size("max_position_embeddings", 2048);
  spec.layers = config.size("num_hidden_layers");
  spec.heads = config.size("num_attention_heads");
  spec.key_value_heads = config.size("num_key_value_heads", spec.heads);
  spec.width = config.size("hidden_size");
  spec.inner_width = config.size("intermediate_size");
  spec.norm_epsilon = config.number("rms_norm_eps", 1e-6);
  spec.rope_theta = rope_theta(config);
  spec.is_tied = config.boolean("tie_word_embeddings", false);
  config.expect_any("hidden_act", {"silu"});
  config.expect("attention_bias", false);
  config.expect("mlp_bias", false);
  if (config.size("head_dim", spec.width / spec.heads) * spec.heads !=
      spec.width) {
    config.refuse("head_dim", "hidden_size / num_attention_heads",
                  config.at("head_dim"));
  }
  return spec;
}

/// Returns true if `name` is a mask or a frequency, which models compute and
/// files may contain.
bool is_left_out(const std::string& name, const LanguageModelSpec& spec) {
  if (spec.architecture == Architecture::kLlama) {
    return name.ends_with(".rotary_emb.inv_freq");
  }
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// Returns the name with its prefix, which the files of a base model lack.
std::string full_name(const std::string& name, const LanguageModelSpec& spec) {
  const bool is_gpt2 = spec.architecture == Architecture::kGpt2;
  const std::string prefix = is_gpt2 ? "transformer." : "model.";
  if (name.starts_with(prefix) || name == kHeadName) return name;
  return prefix + name;
}

using Headers = std::map<std::string, SafeTensorsHeader>;  // by path

/// Returns true if the files have a head that differs from the table of the
/// tokens. Only reads values from files that have one of the two.
bool has_own_head(const Headers& headers, const LanguageModelSpec& spec) {
  bool has_head = false;
  std::set<std::string> files;
  for (const auto& [path, header] : headers) {
    for (const auto& entry : header.entries) {
      const std::string name = full_name(entry.name, spec);
      if (name == kHeadName) has_head = true;
      if (name == kHeadName || is_token_table(name)) files.insert(path);
    }
  }
  if (!has_head) return false;
  NamedTensors found;
  for (const auto& path : files) {
    for (auto& [name, tensor] : read_safetensors(path).tensors) {
      found.emplace_back(full_name(name, spec), std::move(tensor));
    }
  }
  return !has_tied_head(found);
}

/// Throws CheckpointError if the files can't have as many parameters as `spec`
/// promises. It is called before the model takes memory.
void check_budget(const std::string& folder, const Headers& headers,
                  const LanguageModelSpec& spec) {
  int64_t bytes = 0;
  for (const auto& [path, header] : headers) {
    for (const auto& entry : header.entries) {
      bytes += static_cast<int64_t>(entry.end - entry.begin);
    }
  }
  if (models::count_parameters(spec) <= bytes) return;
  throw CheckpointError(
      {.code = ErrorCode::kStateMismatch,
       .what = folder + ": config.json and the weights are of two models",
       .expected = fmt::format("{} parameters", models::count_parameters(spec)),
       .got = fmt::format("{} bytes of weights", bytes)});
}

LanguageModelSpec read_config(const std::string& folder) {
  const Config config(folder);
  const std::string type = config.text("model_type");
  if (type != "gpt2" && type != "llama") {
    config.refuse("model_type", "gpt2 or llama", type);
  }
  LanguageModelSpec spec =
      type == "gpt2" ? gpt2_spec(config) : llama_spec(config);
  spec.name = fs::absolute(folder).lexically_normal().filename().string();
  if (spec.name.empty()) spec.name = type;
  check(spec);
  return spec;
}

json config_of(const LanguageModelSpec& spec) {
  if (spec.architecture == Architecture::kGpt2) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", spec.vocabulary},
            {"n_positions", spec.context},
            {"n_ctx", spec.context},
            {"n_layer", spec.layers},
            {"n_head", spec.heads},
            {"n_embd", spec.width},
            {"n_inner", spec.inner_width},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", spec.norm_epsilon},
            {"resid_pdrop", spec.dropout},
            {"embd_pdrop", spec.dropout},
            {"attn_pdrop", spec.dropout},
            {"tie_word_embeddings", spec.is_tied},
            {"torch_dtype", "float32"}};
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", spec.vocabulary},
          {"max_position_embeddings", spec.context},
          {"num_hidden_layers", spec.layers},
          {"num_attention_heads", spec.heads},
          {"num_key_value_heads", spec.key_value_heads},
          {"hidden_size", spec.width},
          {"intermediate_size", spec.inner_width},
          {"hidden_act", "silu"},
          {"rms_norm_eps", spec.norm_epsilon},
          {"rope_theta", spec.rope_theta},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", spec.is_tied},
          {"torch_dtype", "float32"}};
}

}  // namespace

LanguageModelSpec read_hugging_face_config(const std::string& folder) {
  LanguageModelSpec spec = read_config(folder);
  const Headers headers = read_weight_headers(folder);
  check_budget(folder, headers, spec);
  // transformers also uses the head in the file, whatever the config says.
  if (spec.is_tied && has_own_head(headers, spec)) spec.is_tied = false;
  return spec;
}

bool is_hugging_face(const std::string& path) {
  return fs::is_regular_file(path + "/" + kConfig) && has_weights(path);
}

std::shared_ptr<LanguageModel> load_hugging_face(const std::string& folder) {
  const LanguageModelSpec spec = read_hugging_face_config(folder);
  auto model = models::make_language_model(spec, models::Init::kNone);
  load_hugging_face(folder, state_dict(*model));
  return model;
}

void load_hugging_face(const std::string& folder, const NamedTensors& model) {
  NamedTensors tensors = read_weights(folder);
  adapt_hugging_face(folder, tensors);
  drop_tied_head(model, tensors);
  load_state_dict(model, tensors, folder);
}

void adapt_hugging_face(const std::string& folder, NamedTensors& tensors) {
  const LanguageModelSpec spec = read_config(folder);
  NamedTensors adapted;
  for (auto& [name, tensor] : tensors) {
    const std::string full = full_name(name, spec);
    if (is_left_out(full, spec)) continue;
    adapted.emplace_back(full, std::move(tensor));
  }
  tensors = std::move(adapted);
}

size_t save_hugging_face(const std::string& folder, const LanguageModel& model,
                         uint64_t max_shard_bytes) {
  const size_t files =
      write_weights(folder, state_dict(model), max_shard_bytes);
  write_atomically(folder + "/" + kConfig,
                   config_of(model.spec()).dump(2) + "\n");
  return files;
}

}  // namespace lockstep
