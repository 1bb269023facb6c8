#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace lockstep {

/// Opens /dev/null for each of stdin, stdout and stderr that is closed.
/// Otherwise the next file that is opened gets its number and its output.
void open_standard_files();

/// Writes `text` to an open file, such as stdout, without buffering. Throws
/// IoError naming the file.
void write_now(std::FILE* file, std::string_view text);

/// Writes the buffered output of `file`. Throws IoError if this or an earlier
/// write failed.
void flush_output(std::FILE* file);

/// Appends all of `text` to the file at `path`, or nothing. Creates the file if
/// it does not exist. Throws IoError.
void append_to_file(const std::string& path, std::string_view text);

/// Replaces the file at `path` with `text`, as AtomicFile does. Throws IoError.
void write_atomically(const std::string& path, std::string_view text);

/// Writes `text` to a new file at `path`, which must not exist. Throws IoError,
/// and may then leave an incomplete file.
void write_new_file(const std::string& path, std::string_view text);

/// Returns a name for the open file `fd` in messages: its path, or "the output"
/// if it is a pipe.
std::string name_of_output(int fd);

}  // namespace lockstep
