#include "parallel/comm/communicator.h"

#include <vector>

namespace mmt::comm {

namespace {

void check_tensor(const Communicator& comm, const Tensor& t, const char* what) {
  MMT_CHECK(t.contiguous(), "{}: {} {} is not contiguous", comm.name(), what, t.describe());
  MMT_CHECK(t.numel() == 0 || t.data != nullptr, "{}: {} {} has no memory", comm.name(), what, t.describe());
}

void check_rank(const Communicator& comm, int r, const char* what) {
  MMT_CHECK(r >= 0 && r < comm.size(), "{}: {} is rank {} of {}", comm.name(), what, r, comm.size());
}

std::vector<Tensor> parts_of(const Communicator& comm, const Tensor& whole, const Tensor& part) {
  MMT_CHECK(whole.dtype == part.dtype && whole.numel() == part.numel() * comm.size(), "{}: {} is not {} parts of {}",
            comm.name(), whole.describe(), comm.size(), part.describe());
  std::vector<Tensor> parts;
  for (int r = 0; r < comm.size(); ++r) {
    parts.emplace_back(static_cast<char*>(whole.data) + r * part.bytes(), part.dtype,
                       std::initializer_list<std::int64_t>{part.numel()}, whole.device);
  }
  return parts;
}

}  // namespace

void Communicator::all_reduce(const Tensor& data, ReduceOp op, const Stream& stream) {
  check_tensor(*this, data, "all_reduce");
  do_all_reduce(data, op, stream);
}

void Communicator::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op, const Stream& stream) {
  check_tensor(*this, input, "reduce_scatter input");
  reduce_scatter_v(parts_of(*this, input, output), output, op, stream);
}

void Communicator::reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op,
                                    const Stream& stream) {
  MMT_CHECK(static_cast<int>(inputs.size()) == size(), "{}: {} inputs for {} ranks", name(), inputs.size(), size());
  check_tensor(*this, output, "reduce_scatter output");
  for (const Tensor& t : inputs) {
    check_tensor(*this, t, "reduce_scatter input");
    MMT_CHECK(t.numel() == 0 || t.dtype == output.dtype || !output.defined(), "{}: reduce_scatter of {} into {}",
              name(), t.describe(), output.describe());
  }
  const Tensor& mine = inputs[static_cast<std::size_t>(rank())];
  MMT_CHECK(mine.numel() == output.numel(), "{}: reduce_scatter of {} into {}", name(), mine.describe(),
            output.describe());
  do_reduce_scatter_v(inputs, output, op, stream);
}

void Communicator::all_gather(const Tensor& input, const Tensor& output, const Stream& stream) {
  check_tensor(*this, output, "all_gather output");
  all_gather_v(input, parts_of(*this, output, input), stream);
}

void Communicator::all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream& stream) {
  MMT_CHECK(static_cast<int>(outputs.size()) == size(), "{}: {} outputs for {} ranks", name(), outputs.size(), size());
  check_tensor(*this, input, "all_gather input");
  for (const Tensor& t : outputs) check_tensor(*this, t, "all_gather output");
  const Tensor& mine = outputs[static_cast<std::size_t>(rank())];
  MMT_CHECK(mine.bytes() == input.bytes(), "{}: all_gather of {} into {}", name(), input.describe(), mine.describe());
  do_all_gather_v(input, outputs, stream);
}

void Communicator::broadcast(const Tensor& data, int root, const Stream& stream) {
  check_tensor(*this, data, "broadcast");
  check_rank(*this, root, "the root");
  do_broadcast(data, root, stream);
}

void Communicator::all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream& stream) {
  MMT_CHECK(static_cast<int>(sends.size()) == size() && static_cast<int>(recvs.size()) == size(),
            "{}: {} sends and {} receives for {} ranks", name(), sends.size(), recvs.size(), size());
  for (const Tensor& t : sends) check_tensor(*this, t, "all_to_all send");
  for (const Tensor& t : recvs) check_tensor(*this, t, "all_to_all receive");
  const Tensor& to_me = sends[static_cast<std::size_t>(rank())];
  const Tensor& from_me = recvs[static_cast<std::size_t>(rank())];
  MMT_CHECK(to_me.bytes() == from_me.bytes(), "{}: all_to_all of {} into {} on one rank", name(), to_me.describe(),
            from_me.describe());
  do_all_to_all_v(sends, recvs, stream);
}

void Communicator::send(const Tensor& data, int to, const Stream& stream) {
  check_tensor(*this, data, "send");
  check_rank(*this, to, "the receiver");
  do_send(data, to, stream);
}

void Communicator::recv(const Tensor& data, int from, const Stream& stream) {
  check_tensor(*this, data, "receive");
  check_rank(*this, from, "the sender");
  do_recv(data, from, stream);
}

void Communicator::barrier() { do_barrier(); }

std::unique_ptr<Communicator> Communicator::split(int color, int key, std::string_view name) {
  return do_split(color, key, std::string(name));
}

}  // namespace mmt::comm
