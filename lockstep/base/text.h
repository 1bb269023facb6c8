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

/// Removes the component at the beginning and the code at the end of an error's
/// message that another process printed: "[io] no such file [file-access]"
/// becomes "no such file". The message of an error that it causes has a
/// component and a code of its own.
std::string without_tags(std::string_view message);

/// The candidate nearest to `word` by edit distance (with transpositions), or
/// an empty string if none is near enough to be a slip.
std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates);

/// "did you mean 'resnet18'? Known are mlp, resnet18": for an error's fix.
std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates);

/// `text` in lines of at most `width` columns, broken at spaces. Lines after
/// the first begin with `indent` spaces. A word that is longer than a line is
/// cut. What fits is left as it is.
std::string wrap(std::string_view text, size_t width, size_t indent = 0);

}  // namespace lockstep
