#include "core/data/report.h"

#include <fmt/format.h>

namespace mmt::data {
namespace {

/// The counts that stand before the reasons, in the order of `values`.
template <class Report> auto counts(Report& r) {
  return std::array{&r.samples,   &r.repeated,   &r.truncated,  &r.failed,
                    &r.text_rows, &r.image_rows, &r.audio_rows, &r.supervised};
}

}  // namespace

DataReport& DataReport::operator+=(const DataReport& other) {
  const auto mine = counts(*this);
  const auto theirs = counts(other);
  for (std::size_t i = 0; i < mine.size(); ++i) *mine[i] += *theirs[i];
  for (std::size_t i = 0; i < skipped.size(); ++i) skipped[i] += other.skipped[i];
  return *this;
}

std::vector<std::int64_t> DataReport::values() const {
  std::vector<std::int64_t> all;
  for (const std::int64_t* count : counts(*this)) all.push_back(*count);
  all.insert(all.end(), skipped.begin(), skipped.end());
  return all;
}

DataReport DataReport::from_values(const std::vector<std::int64_t>& values) {
  DataReport report;
  const auto all = counts(report);
  MMT_CHECK(values.size() == all.size() + report.skipped.size(), "{} values", values.size());
  for (std::size_t i = 0; i < all.size(); ++i) *all[i] = values[i];
  for (std::size_t i = 0; i < report.skipped.size(); ++i) report.skipped[i] = values[all.size() + i];
  return report;
}

std::string DataReport::text() const {
  std::string out = fmt::format("data: {} samples seen, {} of them repeated, {} truncated, {} failed while loading\n",
                                samples, repeated, truncated, failed);
  out += fmt::format("rows: {} text ({} supervised), {} image and video, {} audio\n", text_rows, supervised, image_rows,
                     audio_rows);
  std::int64_t total = 0;
  std::string reasons;
  for (int f = 0; f < kNumDataFaults; ++f) {
    const std::int64_t n = skipped[static_cast<std::size_t>(f)];
    total += n;
    if (n > 0) reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", n, name_of(static_cast<DataFault>(f)));
  }
  out += total == 0 ? "skipped: none\n" : fmt::format("skipped: {} ({})\n", total, reasons);
  return out;
}

}  // namespace mmt::data
