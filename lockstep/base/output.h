#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace lockstep {

/// Opens /dev/null for each of stdin, stdout and stderr that is closed.
/// Otherwise the next file that is opened takes the number, and the output.
void open_standard_files();

/// Writes `text` to an open file, such as stdout, at once. Throws IoError that
/// names what is behind it.
void write_now(std::FILE* file, std::string_view text);

/// Writes what is still in the buffer of `file`. Throws the same error, also if
/// an earlier write failed.
void flush_output(std::FILE* file);

/// Appends `text` to the file at `path`, which is made if it is not there: all
/// of it, or nothing. Throws IoError.
void append_to_file(const std::string& path, std::string_view text);

/// Writes `text` to a new file at `path`, which must not exist. Throws IoError;
/// the file may be there then, not whole.
void write_new_file(const std::string& path, std::string_view text);

/// Returns a name for the open file `fd` in messages: its path, or "the output"
/// if it is a pipe.
std::string name_of_output(int fd);

}  // namespace lockstep
