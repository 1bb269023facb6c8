#include "lockstep/train/record/csv_log.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/output.h"

namespace lockstep::training {
namespace {

constexpr size_t kLargestFile = size_t{1} << 30;
constexpr const char* kFirstColumns = "step,epoch,data,lr,step_ms";

/// Quotes a name of the user's as RFC 4180 requires.
std::string cell_of(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string cell = "\"";
  for (const char letter : text) {
    if (letter == '"') cell += '"';
    cell += letter;
  }
  return cell + '"';
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// Returns the cells of a row, without their quotes.
std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (size_t i = 0; i < row.size(); ++i) {
    const bool is_double =
        is_quoted && row[i] == '"' && i + 1 < row.size() && row[i + 1] == '"';
    if (is_double) {
      cells.back() += row[++i];
    } else if (row[i] == '"') {
      is_quoted = !is_quoted;
    } else if (row[i] == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += row[i];
    }
  }
  return cells;
}

/// Returns the step of a row; -1 if the row does not begin with one.
int64_t step_of(const std::string& row) {
  const size_t end = row.find(',');
  if (end == std::string::npos) return -1;
  return parse_number<int64_t>(std::string_view(row).substr(0, end))
      .value_or(-1);
}

}  // namespace

CsvLog::CsvLog(std::string path) : path_(std::move(path)) {
  const AtomicFile writable(path_);
  if (!std::filesystem::is_regular_file(path_)) return;
  const std::string text = read_file(path_, kLargestFile);
  if (text.empty() || text.starts_with(kFirstColumns)) return;
  throw IoError({.code = ErrorCode::kFileAccess,
                 .what = path_ + " exists, and was not written by --csv",
                 .expected = fmt::format("no file, or one that begins with {}",
                                         kFirstColumns),
                 .fix = "choose another path, or remove it"});
}

std::string CsvLog::header() const {
  std::string header = kFirstColumns;
  for (const std::string& name : metrics_) header += "," + cell_of(name);
  return header;
}

void CsvLog::open(int64_t step, bool repeats_evaluation) {
  is_open_ = true;
  std::vector<std::string> rows;
  if (step > 0 && std::filesystem::is_regular_file(path_)) {
    rows = lines_of(read_file(path_, kLargestFile));
  }
  if (rows.empty()) return write_all({});
  metrics_ = cells_of(rows[0]);
  metrics_.erase(metrics_.begin(),
                 metrics_.begin() +
                     static_cast<ptrdiff_t>(cells_of(kFirstColumns).size()));
  std::erase_if(rows, [&](const std::string& row) {
    const int64_t row_step = step_of(row);
    const bool is_repeated = repeats_evaluation && row_step == step &&
                             row.find(",test,") != std::string::npos;
    return row_step < 0 || row_step > step || is_repeated;
  });
  write_all(rows);
}

void CsvLog::write_all(const std::vector<std::string>& rows) {
  AtomicFile file(path_);
  file.write(header() + "\n");
  for (const std::string& row : rows) file.write(row + "\n");
  file.commit();
}

void CsvLog::add(Cells cells, const Metrics& metrics) {
  std::vector<std::string> new_names;
  for (const auto& [name, value] : loss_first(metrics)) {
    if (std::find(metrics_.begin(), metrics_.end(), name) == metrics_.end()) {
      new_names.push_back(name);
    }
  }
  if (!new_names.empty()) {
    auto rows = lines_of(read_file(path_, kLargestFile));
    rows.erase(rows.begin(), rows.begin() + (rows.empty() ? 0 : 1));
    for (std::string& row : rows) row += std::string(new_names.size(), ',');
    const size_t known = metrics_.size();
    metrics_.insert(metrics_.end(), new_names.begin(), new_names.end());
    try {
      write_all(rows);
    } catch (const IoError&) {
      metrics_.resize(known);  // as in the file
      throw;
    }
  }
  for (const std::string& name : metrics_) {
    const auto found = metrics.find(name);
    cells.push_back(found == metrics.end() ? ""
                                           : fmt::format("{}", found->second));
  }
  append_to_file(path_, fmt::format("{}\n", fmt::join(cells, ",")));
}

void CsvLog::before_step(const RunState& at) {
  if (!is_open_) open(at.step, /*repeats_evaluation=*/false);
}

void CsvLog::after_step(const RunState& at, const Metrics& metrics) {
  add({fmt::format("{}", at.step), fmt::format("{}", at.epoch), "train",
       fmt::format("{}", at.lr), fmt::format("{:.3f}", 1e3 * at.step_s)},
      metrics);
}

void CsvLog::after_evaluation(const RunState& at, const TestReport& test) {
  if (!is_open_) open(at.step, /*repeats_evaluation=*/true);
  add({fmt::format("{}", at.step), fmt::format("{}", at.epoch), "test", "", ""},
      test.metrics);
}

}  // namespace lockstep::training
