#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Returns the first line of `text`. For messages of other libraries, which may
/// continue with a stack trace.
std::string first_line(std::string_view text);

/// Returns the last line of `text` that is not blank.
std::string last_line(const std::string& text);

/// Returns `text` without blanks and tabs at its beginning and end.
std::string_view trimmed(std::string_view text);

/// Removes the component and the code from an error message that another
/// process printed: "[io] no such file [file-access]" becomes "no such file".
/// The error that it causes has its own component and code.
std::string without_tags(std::string_view message);

/// Returns the candidate nearest to `word` by edit distance (with
/// transpositions), or an empty string if none is near enough to be a typo.
std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates);

/// Returns the fix for an error: "did you mean 'resnet18'? Known are mlp,
/// resnet18".
std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates);

/// Breaks `text` at spaces into lines of at most `width` columns. Lines after
/// the first begin with `indent` spaces. Cuts words that are longer than a
/// line. Returns text that fits unchanged.
std::string wrap(std::string_view text, size_t width, size_t indent = 0);

/// Returns `word` in quotes, so that a shell reads it unchanged.
std::string shell_quoted(std::string_view word);
/// Returns `words` as one command, quoted so that a shell reads them unchanged.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace lockstep
