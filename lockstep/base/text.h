#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// `text` up to its first line's end: what others' messages say before they
/// go on with a stack.
std::string first_line(std::string_view text);

/// The last line of `text` that is not blank.
std::string last_line(const std::string& text);

/// The candidate nearest to `word` by edit distance (with transpositions), or
/// an empty string if none is near enough to be a slip.
std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates);

/// "did you mean 'resnet18'? Known are mlp, resnet18": for an error's fix.
std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates);

}  // namespace lockstep
