#include "tests/apps/dump_file.h"

#include "core/hdf5/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mmt::app_test {
namespace {

DumpFile::Tensor read_tensor(const h5::File& file, const std::string& name) {
  const h5::Info info = file.info(name);
  DumpFile::Tensor t;
  t.shape = info.shape;
  std::int64_t count = 1;
  for (const std::int64_t d : t.shape) count *= d;
  t.values.resize(static_cast<std::size_t>(count));
  file.read(name, DType::f32, t.shape, t.values.data());
  return t;
}

std::vector<std::int32_t> read_ids(const h5::File& file, const std::string& name) {
  const h5::Info info = file.info(name);
  std::vector<std::int32_t> values(static_cast<std::size_t>(info.shape.at(0)));
  file.read(name, DType::i32, info.shape, values.data());
  return values;
}

bool close(double a, double b, double relative) {
  return std::abs(a - b) <= relative * std::max({std::abs(a), std::abs(b), 1e-30});
}

/// The s of dump_file.h; 0 for what is no bias of a linear map.
double absolute_sum(const DumpFile& file, const std::string& name) {
  const std::string ending = ".bias";
  if (!name.ends_with(ending)) return 0.0;
  const auto weight = file.grads.find(name.substr(0, name.size() - ending.size()) + ".weight");
  if (weight == file.grads.end() || weight->second.shape.size() != 2) return 0.0;
  return 2.0 * norm(weight->second.values) / std::sqrt(static_cast<double>(weight->second.shape[1]));
}

}  // namespace

double norm(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

DumpFile read_dump(const std::filesystem::path& path) {
  const h5::File file = h5::File::open(path.string());
  DumpFile d;
  d.loss = file.read_scalar("loss");
  d.weight = file.read_scalar("weight");
  d.grad_norm = file.read_scalar("grad_norm");
  for (const std::string& name : file.datasets("grads")) {
    const std::size_t at = name.find("grads/") + 6;
    d.grads[name.substr(at)] = read_tensor(file, name);
  }
  for (const h5::Entry& entry : file.list("samples")) {
    const std::string base = "samples/" + entry.name;
    DumpFile::Sample& s = d.samples[std::stoll(entry.name)];
    s.loss = file.read_scalar(base + "/loss");
    s.weight = file.read_scalar(base + "/weight");
    s.ids = read_ids(file, base + "/input_ids");
    s.labels = read_ids(file, base + "/labels");
    if (file.contains(base + "/logits")) s.logits = read_tensor(file, base + "/logits");
  }
  return d;
}

std::vector<std::string> gradient_differences(const DumpFile& reference, const DumpFile& other,
                                              std::vector<std::string>* by_second_term) {
  std::vector<std::string> list;
  for (const auto& [name, g] : reference.grads) {
    const auto found = other.grads.find(name);
    if (found == other.grads.end()) {
      list.push_back(name + ": no gradient");
      continue;
    }
    if (found->second.shape != g.shape) {
      list.push_back(name + ": another shape");
      continue;
    }
    const double error = distance(g.values, found->second.values), size = norm(g.values);
    if (error <= 1e-5 * size) continue;
    const double s = absolute_sum(reference, name);
    if (error <= 1e-5 * 1e-2 * s) {
      if (by_second_term != nullptr) by_second_term->push_back(name);
      continue;
    }
    list.push_back(fmt::format("{}: gradient of norm {:.3e} differs by {:.3e} ({:.1e} of it; s = {:.3e})", name, size,
                               error, error / size, s));
  }
  for (const auto& [name, g] : other.grads) {
    if (!reference.grads.contains(name)) list.push_back(name + ": a gradient that the reference lacks");
  }
  if (!close(reference.grad_norm, other.grad_norm, 1e-5))
    list.push_back(fmt::format("grad_norm: {} and {}", reference.grad_norm, other.grad_norm));
  return list;
}

std::vector<std::string> differences(const DumpFile& reference, const DumpFile& other,
                                     std::vector<std::string>* by_second_term) {
  std::vector<std::string> list = gradient_differences(reference, other, by_second_term);
  // A loss is a sum of positive terms: its relative error is that of a term.
  constexpr double kRounding = 1e-5;
  if (!close(reference.loss, other.loss, kRounding))
    list.push_back(fmt::format("loss: {} and {}", reference.loss, other.loss));
  if (!(reference.weight == other.weight))
    list.push_back(fmt::format("weight: {} and {}", reference.weight, other.weight));
  if (reference.samples.size() != other.samples.size())
    list.push_back(fmt::format("{} and {} samples", reference.samples.size(), other.samples.size()));
  for (const auto& [place, a] : reference.samples) {
    const auto found = other.samples.find(place);
    if (found == other.samples.end()) {
      list.push_back(fmt::format("sample {} is missing", place));
      continue;
    }
    const DumpFile::Sample& b = found->second;
    if (a.ids != b.ids) list.push_back(fmt::format("sample {}: other ids", place));
    if (a.labels != b.labels) list.push_back(fmt::format("sample {}: other labels", place));
    if (a.logits.shape != b.logits.shape) {
      list.push_back(fmt::format("sample {}: other logits", place));
    } else if (distance(a.logits.values, b.logits.values) > kRounding * norm(a.logits.values)) {
      list.push_back(fmt::format("sample {}: logits of norm {} differ by {}", place, norm(a.logits.values),
                                 distance(a.logits.values, b.logits.values)));
    }
    if (!close(a.weight, b.weight, 1e-6))
      list.push_back(fmt::format("sample {}: weight {} and {}", place, a.weight, b.weight));
    if (!close(a.loss, b.loss, kRounding))
      list.push_back(fmt::format("sample {}: loss {} and {}", place, a.loss, b.loss));
  }
  return list;
}

}  // namespace mmt::app_test
