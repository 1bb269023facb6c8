#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The candidate nearest to `word` by edit distance (with transpositions), or
/// an empty string if none is near enough to be a slip.
std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates);

/// "did you mean 'resnet18'? Known are mlp, resnet18": for an error's fix.
std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates);

}  // namespace lockstep
