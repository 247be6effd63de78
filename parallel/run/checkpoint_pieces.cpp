#include "parallel/run/checkpoint_pieces.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace mmt::run {

namespace {

// Elements [first, last) of the box dims[k..], whose leading coordinates are fixed.
void cut(const h5::Box& whole, std::size_t k, h5::Box& at, std::int64_t first, std::int64_t last,
         std::vector<h5::Box>& out) {
  if (first == last) return;
  std::int64_t stride = 1;
  for (std::size_t d = k + 1; d < whole.shape.size(); ++d) stride *= whole.shape[d];
  const auto emit = [&](std::int64_t index, std::int64_t count) {
    at.offset[k] = whole.offset[k] + index;
    at.shape[k] = count;
    for (std::size_t d = k + 1; d < whole.shape.size(); ++d) {
      at.offset[d] = whole.offset[d];
      at.shape[d] = whole.shape[d];
    }
    out.push_back(at);
  };
  const auto inside = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    at.offset[k] = whole.offset[k] + index;
    at.shape[k] = 1;
    cut(whole, k + 1, at, from, to, out);
  };
  std::int64_t row = first / stride;
  const std::int64_t last_row = last / stride;
  if (row == last_row) return inside(row, first % stride, last % stride);
  if (first % stride != 0) inside(row++, first % stride, stride);
  if (row < last_row) emit(row, last_row - row);
  if (last % stride != 0) inside(last_row, 0, last % stride);
}

std::vector<std::int64_t> parse_list(std::string_view text) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    std::int64_t v = 0;
    std::from_chars(word.data(), word.data() + word.size(), v);
    values.push_back(v);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return values;
}

}  // namespace

void put_range(std::span<const std::int64_t> shape, const h5::Box& box, std::int64_t first,
               std::span<const float> values, std::span<float> whole) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t rest = first + static_cast<std::int64_t>(i), at = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += stride * (box.offset[d] + rest % box.shape[d]);
      rest /= box.shape[d];
      stride *= shape[d];
    }
    whole[static_cast<std::size_t>(at)] = values[i];
  }
}

std::int64_t num_elements(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

std::vector<h5::Box> boxes_of_range(const h5::Box& box, std::int64_t first, std::int64_t count) {
  std::vector<h5::Box> boxes;
  h5::Box at = box;
  cut(box, 0, at, first, first + count, boxes);
  return boxes;
}

std::vector<h5::Box> boxes_of(const TensorPart& part) {
  const std::size_t rank = part.shape.size();
  MMT_CHECK(!part.name.empty() && part.name.front() != '/' && part.name.find_first_of("\t\n") == std::string::npos,
            "\"{}\" is no tensor name", part.name);
  MMT_CHECK(rank >= 1 && rank <= Tensor::kMaxRank && part.box.offset.size() == rank && part.box.shape.size() == rank,
            "{}: shape [{}], box at [{}] of [{}]", part.name, fmt::join(part.shape, ","),
            fmt::join(part.box.offset, ","), fmt::join(part.box.shape, ","));
  for (std::size_t d = 0; d < rank; ++d) {
    MMT_CHECK(
        part.box.offset[d] >= 0 && part.box.shape[d] >= 0 && part.box.offset[d] + part.box.shape[d] <= part.shape[d],
        "{}: box at [{}] of [{}] lies outside [{}]", part.name, fmt::join(part.box.offset, ","),
        fmt::join(part.box.shape, ","), fmt::join(part.shape, ","));
  }
  const std::int64_t all = num_elements(part.box.shape);
  const std::int64_t count = part.count < 0 ? all : part.count;
  MMT_CHECK(part.first >= 0 && part.first + count <= all, "{}: elements [{}, {}) of {}", part.name, part.first,
            part.first + count, all);
  MMT_CHECK(part.data.numel() == count && part.data.contiguous() && part.data.device.kind == DeviceKind::cpu,
            "{}: {} holds not the {} elements", part.name, part.data.describe(), count);
  return boxes_of_range(part.box, part.first, count);
}

std::string PieceRow::dataset() const { return fmt::format("{}/{}", tensor, fmt::join(box.offset, "_")); }

std::string PieceRow::file() const { return fmt::format("rank_{:05}{}.h5", writer, frozen ? ".frozen" : ""); }

std::string pack(std::span<const PieceRow> rows) {
  std::string text;
  for (const PieceRow& r : rows) {
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", r.tensor, name_of(r.dtype), fmt::join(r.shape, ","),
                        fmt::join(r.box.offset, ","), fmt::join(r.box.shape, ","), r.frozen ? 1 : 0);
  }
  return text;
}

std::vector<PieceRow> unpack(const std::string& text, int writer) {
  std::vector<PieceRow> rows;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    std::string_view words[6];
    for (std::string_view& word : words) {
      word = line.substr(0, line.find('\t'));
      line.remove_prefix(std::min(line.size(), word.size() + 1));
    }
    rows.push_back({std::string(words[0]),
                    parse_dtype(words[1]).value(),
                    parse_list(words[2]),
                    {parse_list(words[3]), parse_list(words[4])},
                    words[5] == "1",
                    writer});
  }
  return rows;
}

std::map<std::string, std::vector<PieceRow>> check_coverage(const std::vector<PieceRow>& rows) {
  std::map<std::string, std::vector<PieceRow>> by_tensor;
  for (const PieceRow& row : rows) by_tensor[row.tensor].push_back(row);
  for (const auto& [tensor, pieces] : by_tensor) {
    std::vector<h5::Box> boxes;
    std::string writers;
    for (const PieceRow& p : pieces) {
      if (p.dtype != pieces[0].dtype || p.shape != pieces[0].shape || p.frozen != pieces[0].frozen) {
        throw Error(fmt::format("{} is {} on rank {} and {} on rank {}", tensor,
                                h5::describe(pieces[0].dtype, pieces[0].shape), pieces[0].writer,
                                h5::describe(p.dtype, p.shape), p.writer));
      }
      boxes.push_back(p.box);
      writers += fmt::format("{}rank {} at [{}] of [{}]", writers.empty() ? "" : ", ", p.writer,
                             fmt::join(p.box.offset, ","), fmt::join(p.box.shape, ","));
    }
    try {
      h5::check_exact_cover(pieces[0].shape, boxes, tensor);
    } catch (const std::exception& e) {
      throw Error(fmt::format("the parts do not cover every element exactly once: {} ({})", e.what(), writers));
    }
  }
  return by_tensor;
}

}  // namespace mmt::run
