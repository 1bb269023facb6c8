#include "lockstep/cli/model_family.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/cli/start/checks.h"

namespace lockstep::cli {

ModelFamilies::ModelFamilies(const std::vector<MakeFamily>& families) {
  for (const auto& make : families) families_.push_back(make());
}

Option ModelFamilies::model_option(std::string& model) const {
  std::vector<std::string> parts;
  for (const auto& family : families_) parts.push_back(family->models_help());
  return {.name = "--model",
          .value = &model,
          .help = fmt::format("{}", fmt::join(parts, "; ")),
          .group = kModelAndData,
          .words = models()};
}

Option ModelFamilies::data_option(std::string& data,
                                  const std::string& default_text) const {
  std::vector<std::string> names, parts;
  for (const auto& family : families_) {
    for (const auto& name : family->datasets()) names.push_back(name);
    parts.push_back(family->datasets_help());
  }
  return {.name = "--data",
          .value = &data,
          .help = fmt::format("{}", fmt::join(parts, "; ")),
          .default_text = default_text,
          .group = kModelAndData,
          .words = names};
}

std::vector<Option> ModelFamilies::options_by_topic(OptionKind kind) const {
  std::vector<Option> all;
  for (const auto& family : families_) {
    for (const auto& option : family->options(kind)) all.push_back(option);
  }
  return all;
}

std::vector<Option> ModelFamilies::options(OptionKind kind) const {
  std::vector<Option> all = options_by_topic(kind);
  for (auto& option : all) option.topic.clear();
  return all;
}

std::vector<std::string> ModelFamilies::models() const {
  std::vector<std::string> all;
  for (const auto& family : families_) {
    for (const auto& name : family->models()) all.push_back(name);
  }
  return all;
}

ModelFamily& ModelFamilies::of_model(const std::string& model) const {
  const auto found = std::ranges::find_if(families_, [&](const auto& family) {
    const auto names = family->models();
    return std::ranges::count(names, model) > 0;
  });
  return **(found == families_.end() ? families_.begin() : found);
}

void ModelFamilies::refuse_others(const CLI::App& app,
                                  const ModelFamily& chosen,
                                  const std::string& data,
                                  const std::string& got) const {
  for (const auto& family : families_) {
    if (family.get() == &chosen) continue;
    for (const auto kind : {OptionKind::kModel, OptionKind::kData,
                            OptionKind::kAugmentation, OptionKind::kLayout}) {
      for (const Option& own : family->options(kind)) {
        const CLI::Option* option = app.get_option_no_throw(own.name);
        if (option == nullptr || option->count() == 0) continue;
        throw BadUsage(fmt::format("[usage] {} is for {}, got {}", own.name,
                                   family->name(), got));
      }
    }
    const auto datasets = family->datasets();
    if (std::ranges::count(datasets, data) > 0) {
      throw BadUsage(
          fmt::format("[usage] --data {} is for {}, got {}; use one of their "
                      "models, such as {}, or leave out --data",
                      data, family->name(), got, family->models().front()));
    }
  }
}

std::string ModelFamilies::default_text(
    const std::string& text,
    const std::function<std::string(const ModelFamily&)>& of_family) const {
  std::string all = text;
  for (size_t i = 1; i < families_.size(); ++i) {
    all +=
        fmt::format("; {}: {}", families_[i]->name(), of_family(*families_[i]));
  }
  return all;
}

std::string ModelFamilies::default_optimizer() const {
  return default_text("sgd", [](const ModelFamily& family) {
    const auto defaults = family.optimizer_defaults();
    return defaults.optimizer == tasks::OptimizerKind::kAdamW ? "adamw" : "sgd";
  });
}

}  // namespace lockstep::cli
