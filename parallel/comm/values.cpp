#include "parallel/comm/values.h"

namespace mmt::comm {

namespace {

template <class T> Tensor scalar(T& value) { return Tensor(&value, dtype_of<T>, {1}); }
Tensor bytes_of(std::string& text) { return Tensor(text.data(), DType::u8, {static_cast<std::int64_t>(text.size())}); }

}  // namespace

std::int64_t all_reduce(Communicator& comm, std::int64_t value, ReduceOp op) {
  comm.all_reduce(scalar(value), op);
  return value;
}

double all_reduce(Communicator& comm, double value, ReduceOp op) {
  comm.all_reduce(scalar(value), op);
  return value;
}

bool any_of(Communicator& comm, bool value) { return all_reduce(comm, std::int64_t{value}, ReduceOp::max) != 0; }
bool all_of(Communicator& comm, bool value) { return all_reduce(comm, std::int64_t{value}, ReduceOp::min) != 0; }

std::int64_t broadcast(Communicator& comm, std::int64_t value, int root) {
  comm.broadcast(scalar(value), root);
  return value;
}

std::string broadcast(Communicator& comm, std::string text, int root) {
  const std::int64_t size = broadcast(comm, static_cast<std::int64_t>(text.size()), root);
  text.resize(static_cast<std::size_t>(size));
  comm.broadcast(bytes_of(text), root);
  return text;
}

std::vector<std::int64_t> all_gather(Communicator& comm, std::int64_t value) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(scalar(value), Tensor(all.data(), DType::i64, {comm.size()}));
  return all;
}

std::vector<std::string> all_gather(Communicator& comm, const std::string& text) {
  std::string mine = text;
  std::vector<std::string> all;
  for (const std::int64_t size : all_gather(comm, static_cast<std::int64_t>(text.size()))) {
    all.emplace_back(static_cast<std::size_t>(size), '\0');
  }
  std::vector<Tensor> outputs;
  for (std::string& t : all) outputs.push_back(bytes_of(t));
  comm.all_gather_v(bytes_of(mine), outputs);
  return all;
}

void agree_on_success(Communicator& comm, const std::string& problem) {
  if (!any_of(comm, !problem.empty())) return;
  std::string text;
  const std::vector<std::string> all = all_gather(comm, problem);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) text += fmt::format("{}rank {}: {}", text.empty() ? "" : "\n", r, all[r]);
  }
  throw Error(text);
}

}  // namespace mmt::comm
