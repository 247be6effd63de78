// What `mmtrain dump` wrote, and by which measure two of them are equal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mmt::app_test {

struct DumpFile {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  struct Sample {
    double loss = 0.0, weight = 0.0;
    std::vector<std::int32_t> ids, labels;
    Tensor logits;  ///< (rows, vocabulary); empty without --logits
  };
  double loss = 0.0, weight = 0.0, grad_norm = 0.0;
  std::map<std::string, Tensor> grads;  ///< by "<module>/<parameter>"
  std::map<std::int64_t, Sample> samples;
};

DumpFile read_dump(const std::filesystem::path& path);

double norm(const std::vector<float>& values);
double distance(const std::vector<float>& a, const std::vector<float>& b);

/// Two runs of one step that differ in the order of sums alone. Returns what is not equal, one line each.
///
/// Gradients: ||g - g_ref|| <= 1e-5 max(||g_ref||, 1e-2 s) for every tensor, where s is the norm of its sums of
/// absolute contributions. From outside the program s is not known. For the bias of a linear map W behind a norm it
/// follows from W's gradient: dW = dY^T X with rows of X of the norm sqrt(columns), so ||dW|| <= sqrt(columns) s; and
/// with rows of varying sign, at least the 17 of a picture, s is larger than this bound by about sqrt(17) / 2. So s = 2
/// ||dW|| / sqrt(columns). For all other tensors s = 0: there the first term decides. `by_second_term` collects the
/// names that needed s.
std::vector<std::string> differences(const DumpFile& reference, const DumpFile& other,
                                     std::vector<std::string>* by_second_term = nullptr);

/// Gradients alone, without the check of samples: for runs whose samples were grouped by other means.
std::vector<std::string> gradient_differences(const DumpFile& reference, const DumpFile& other,
                                              std::vector<std::string>* by_second_term = nullptr);

}  // namespace mmt::app_test
